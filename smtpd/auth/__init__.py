"""AUTH: mechanisms, the table of users, and the limits on wrong passwords (RFC 4954)."""
