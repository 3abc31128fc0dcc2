"""Suspensions: operators stop mail of a domain, sender, tenant, host or condition for a while.

Only what notes them with an outcome and explains them is here so far; the rest is still in the
core.
"""

from pgmta.features import Feature

FEATURE = Feature(settling=(".settling:SETTLING",), explainers=(".explainer:EXPLAINER",))
