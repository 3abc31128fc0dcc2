"""Upkeep: the process of queued, and its duties, one a file, listed in duties.py."""
