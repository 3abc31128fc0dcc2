"""Commands of the HTTP API."""
