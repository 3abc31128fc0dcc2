"""The web server of tokens: `queued web`, its pages and its endpoints."""
