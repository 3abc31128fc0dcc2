"""Inquiries: operators see the connections to a next hop in all running processes, and end some.

Operators read docs/operate/connections.md.
"""

from pgmta.features import Command, Feature

FEATURE = Feature(
    schema=("schema.sql",),
    commands={
        "inspect": Command(
            path=".inspect_command:inspect",
            line="Show a destination: its connections, what each waits for, limits and ceilings.",
            task="Next hops",
        ),
        "inspect --disconnect": Command(
            path=".disconnect_command:disconnect",
            line="End connections to next hops, which `queuectl inspect` lists with their ids.",
            task="Next hops",
        ),
    },
    duties=(".duty:DUTY",),
    process_parts=(".answers:add_answers",),
    explainers=(".explainer:EXPLAINER",),
)
