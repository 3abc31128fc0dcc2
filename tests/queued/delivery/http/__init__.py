"""The transport http."""
