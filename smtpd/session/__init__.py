"""One SMTP session: commands, login, content, and the answer to it (RFC 5321, section 3)."""
