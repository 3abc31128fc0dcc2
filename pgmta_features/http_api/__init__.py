"""The HTTP API: mail by JSON, and what became of it (docs/programs/http.md)."""

from pgmta.features import Command, Feature

FEATURE = Feature(
    needs=("suppressions", "events"),
    schema=("schema/keys.sql", "schema/intake.sql", "schema/messages.sql", "schema/commands.sql"),
    commands={
        "apikey": Command(
            path=".commands.apikey:apikey",
            line="Make, list, change and revoke the keys of the HTTP API.",
            task="Programs and people",
            also=("key", "keys"),
        )
    },
    more_keys={"web/limits": ".config:ApiLimits"},
    doctor_checks=(".doctor_check:checks",),
    duties=(".expiry:DUTY",),
    routes={"api": ".routes:API"},
    first_steps=(".commands.first_step:STEP",),
)
