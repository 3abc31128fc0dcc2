"""TLS with next hops: handshake, DANE, MTA-STS."""
