"""SMTP and LMTP as a client: connection, replies, commands, content."""
