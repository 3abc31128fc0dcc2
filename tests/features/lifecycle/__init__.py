"""Accounts, tokens, collectors and their mail."""
