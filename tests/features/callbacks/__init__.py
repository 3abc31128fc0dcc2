"""Callbacks of providers: proofs, events, the log and the books."""
