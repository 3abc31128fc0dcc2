"""Configuration files: one module a file, checked before anything starts."""
