"""The duties of queued, one a file, listed in duties.py."""
