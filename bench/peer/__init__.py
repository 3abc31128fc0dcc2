"""pgmta beside its peers: the same mail through each in turn, and the ratios."""
