"""Statements about accounts and tokens: the schema lifecycle."""
