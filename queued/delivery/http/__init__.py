"""Texts with words and paths in JSON, which providers and callbacks share."""
