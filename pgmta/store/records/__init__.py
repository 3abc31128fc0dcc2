"""Records of deliveries: attempts, transcripts, reports, the TLS of hosts; and keys of DKIM."""
