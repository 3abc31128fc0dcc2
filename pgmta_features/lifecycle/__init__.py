"""Lifecycle: accounts, their tokens, and the mail about them, in a schema of their own.

Its page is docs/programs/lifecycle.md. `queuectl lifecycle install` makes the schema.
"""

from pgmta.features import Command, Feature

FEATURE = Feature(
    needs=("rates",),
    schema=("expiry.sql",),
    more_schemas=("lifecycle",),
    commands={
        "lifecycle": Command(
            path=".commands.lifecycle:lifecycle",
            line="Manage the schema `lifecycle`: accounts, tokens and the mail about them.",
            task="Programs and people",
        )
    },
    duties=(".expiry:DUTY", ".backlog:DUTY"),
    named_loops=(".collectors:COLLECTORS",),
    sections={"collectors": ".config:COLLECTORS"},
    more_keys={
        "retention": ".config:LifecycleRetention",
    },
    config_checks=(".config:problems",),
    doctor_checks=(".account_checks:checks",),
    first_steps=(".first_step:STEP",),
    routes={"pages": ".pages:PAGES"},
)
