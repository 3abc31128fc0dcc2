"""Suspensions: operators stop mail of a domain, sender, tenant, host or condition for a while."""

from pgmta.features import Feature

FEATURE = Feature(settling=(".settling:SETTLING",))
