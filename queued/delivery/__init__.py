"""Envelopes in, results out. Knows SMTP and DNS, and no database."""
