"""Composed mail: parts, templates and parameters to octets (pure)."""
