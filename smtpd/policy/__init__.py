"""The relay rules: who may send, and to whom."""
