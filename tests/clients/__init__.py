"""Clients of others, and other ways in, against a running smtpd."""
