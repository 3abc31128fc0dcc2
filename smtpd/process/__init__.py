"""Processes: the master, its serving children, their sockets and user."""
