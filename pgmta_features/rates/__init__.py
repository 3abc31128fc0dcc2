"""Rates: how much mail may go per second, and per month, over all workers and processes.

A budget is a row with a rate, of which workers reserve times. A route of shaping.yaml with a rate
has budgets of its own. Metadata can name another, as campaigns do. See docs/mail/rates.md.
"""

from pgmta.features import Command, Feature

FEATURE = Feature(
    schema=("schema.sql",),
    commands={
        "budget": Command(
            path=".command:budget",
            line="List and set budgets: what may be sent per second and month, over all processes.",
            task="Next hops",
        )
    },
    duties=(".duty:DUTY",),
    stages={"": ".rate_stage:RateStage"},
    route_keys=(".config:RatedRoute",),
    doctor_checks=(".doctor_check:checks",),
    explainers=(".explainer:EXPLAINER",),
)
