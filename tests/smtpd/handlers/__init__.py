"""Handlers that operators and aiosmtpd's documentation write, and hostile ones."""
