"""The queue: its floor (shared with smtpd), store, delivery, workers and operator commands."""
