"""Campaigns: lists of recipients whose mail is made as it goes, and what became of each.

Only what counts their outcomes is here so far; commands, duties and tables are still in the core.
"""

from pgmta.features import Feature

FEATURE = Feature(settling=(".outcomes:SETTLING",), beginning=(".outcomes:BEGINNING",))
