"""Envelopes in, results out: queues of destinations, transports, SMTP, TLS, DNS. No database."""
