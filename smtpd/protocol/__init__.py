"""Replies, transactions, and what proxies say (pure)."""
