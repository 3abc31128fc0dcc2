"""Collectors: they make mail of tokens, in batches."""
