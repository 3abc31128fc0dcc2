"""Configuration files: the loader, the value types, and the sections that both daemons have."""
