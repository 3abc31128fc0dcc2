"""Hooks: handlers of the operator's own, written against aiosmtpd's interface."""
