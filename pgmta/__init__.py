"""What smtpd and queued stand on: addresses, model, configuration, PostgreSQL, store, intake."""
