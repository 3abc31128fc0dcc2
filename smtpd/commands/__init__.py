"""The commands of a session with their parameters and replies (RFC 5321, section 4.1)."""
