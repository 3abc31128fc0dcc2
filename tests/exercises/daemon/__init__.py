"""A daemon with a separate role, which puts mail in."""
