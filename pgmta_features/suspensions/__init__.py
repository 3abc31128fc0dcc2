"""Suspensions: operators stop mail of a domain, sender, tenant, host or condition for a while.

Operators read docs/operate/suspensions.md.
"""

from pgmta.features import Command, Feature

FEATURE = Feature(
    schema=("schema.sql",),
    commands={
        "suspend": Command(
            path=".command:suspend",
            line="Stop attempts for mail until `queuectl suspend --end`, or for a time.",
            task="Next hops",
        ),
        "suspend --list": Command(
            path=".command:suspensions",
            line="List the suspensions, with the rows that came due and were put off for each.",
            task="Next hops",
        ),
        "suspend --end": Command(
            path=".command:end",
            line="End suspensions: their mail becomes due within a minute, "
            "unless it meets another one.",
            task="Next hops",
            also=("resume",),  # as audit and the SQL function have it
        ),
    },
    looks=(".store:ANY_SUSPENSION",),
    duties=(".duty:DUTY",),
    process_parts=(".watch:add_watch",),
    settling=(".settling:SETTLING",),
    explainers=(".explainer:EXPLAINER",),
    waits_for="waits_for",
)
