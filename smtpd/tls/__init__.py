"""TLS with clients: certificates, contexts and the handshake."""
