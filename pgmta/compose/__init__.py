"""Composed mail: as programs submit it, and from parts or a template to octets (pure)."""
