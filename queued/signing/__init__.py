"""DKIM: keys, rules, signatures, and the threads that sign."""
