"""Events: what became of mail, for programs, in the order in which it was committed.

An event commits with its outcome. Programs read docs/programs/events.md.
"""

from pgmta.features import Feature

FEATURE = Feature(
    needs=("suppressions",),
    schema=(
        "schema/events.sql",
        "schema/subscriptions.sql",
        "schema/numbering.sql",
        "schema/reading.sql",
    ),
)
