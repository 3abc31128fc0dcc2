"""Bounds on one client: turns, memory, time, connections; and the end of a connection."""
