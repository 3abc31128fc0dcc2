"""Duties beside delivery, one a file."""
