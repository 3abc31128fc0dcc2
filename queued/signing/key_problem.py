"""The error of a key that can't be used."""

from __future__ import annotations


class KeyProblem(Exception):
    """A key, or its record in DNS, can't be used; the text is the reason."""
