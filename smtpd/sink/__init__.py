"""The development sink: a next hop that keeps each message."""
