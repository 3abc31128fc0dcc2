"""The values between workers and transports: destinations, envelopes, results."""
