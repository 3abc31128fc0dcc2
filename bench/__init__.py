"""Benchmarks of pgmta: rates, CPU per message, memory, and other mail servers beside it."""
