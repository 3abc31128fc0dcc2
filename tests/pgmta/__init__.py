"""The shared floor."""
