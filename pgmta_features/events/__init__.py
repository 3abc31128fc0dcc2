"""Events: what became of mail, for programs, in the order in which it was committed.

An event commits with its outcome. Programs read docs/programs/events.md.
"""

from pgmta.features import Command, Feature

FEATURE = Feature(
    needs=("suppressions",),
    schema=(
        "schema/events.sql",
        "schema/subscriptions.sql",
        "schema/numbering.sql",
        "schema/reading.sql",
        "schema/tables.sql",
        "schema/functions.sql",
    ),
    commands={
        "events": Command(
            path=".command:events",
            line="Show what became of mail, in the order in which it was committed.",
            task="Programs and people",
        )
    },
    more_keys={"retention": ".config:EventRetention"},
    looks=(
        ".sequencer:SUBSCRIBED",
        ".sequencer:UNNUMBERED",
        ".consumers.function_caller:FUNCTIONS",
        ".consumers.late_rows:RETRIES",
    ),
    duties=(".retention:DUTY", ".consumers.late_rows:DUTY"),
    loops={
        "events": ".sequencer:number_events",
        "event functions": ".consumers.function_caller:call_functions",
    },
    doctor_checks=(".doctor_check:checks",),
)
