"""Campaigns: lists of recipients whose mail is made as it goes, and what became of each."""

from pgmta.features import Feature

FEATURE = Feature(settling=(".outcomes:SETTLING",), beginning=(".outcomes:BEGINNING",))
