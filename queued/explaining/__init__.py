"""Why mail waits, in words."""
