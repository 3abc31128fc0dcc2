"""Lifecycle: accounts and their tokens in a schema of their own, and the mail about them.

Only the pages of `queued web` are here so far (docs/programs/web.md).
"""

from pgmta.features import Feature

FEATURE = Feature(more_keys={"web/public": ".return_pages:ReturnPages"}, routes=(".pages:PAGES",))
