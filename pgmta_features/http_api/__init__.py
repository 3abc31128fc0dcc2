"""The HTTP API: mail by JSON, and what became of it (docs/programs/http.md)."""

from pgmta.features import Feature

FEATURE = Feature(
    needs=("events",),
    schema=("schema/keys.sql", "schema/intake.sql"),
    more_keys={"web/limits": ".config:ApiLimits"},
    duties=(".expiry:DUTY",),
    routes={"api": ".routes:API"},
)
