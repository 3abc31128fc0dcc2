"""The features of pgmta, a folder each. `pgmta/features.py` lists those that are in use."""
