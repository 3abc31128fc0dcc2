"""Sessions of smtpd and bad input of every kind."""
