"""The header as it leaves, and VERP addresses (pure)."""
