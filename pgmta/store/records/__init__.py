"""Records of deliveries: attempts, transcripts, reports, TLS of hosts; DKIM keys."""
