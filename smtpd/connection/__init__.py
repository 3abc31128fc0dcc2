"""One connection: octets in, replies out; PROXY header, TLS, greeting."""
