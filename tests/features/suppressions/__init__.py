"""Suppressions, links that unsubscribe, complaints, forgetting a person, and expiry."""
