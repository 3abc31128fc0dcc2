"""Envelope in, outcome out. Knows SMTP and DNS, and nothing of the database."""
