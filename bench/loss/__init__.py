"""Losses of the primary: hosts in network namespaces, their faults, and the books of the mail."""
