"""SMTP smuggling: no content may become two messages at any other server."""
