"""A transport that posts mail as JSON to a web server."""
