"""Suppressions: addresses that get no mail, because they bounced, complained or unsubscribed.

All mail is looked up. Hard bounces add to them in the commit of their outcome; mail that comes back
and complaints by a trigger on the log. See docs/programs/suppressions.md.
"""

from pgmta.features import Command, Feature

FEATURE = Feature(
    schema=("schema.sql", "unsubscribing.sql"),
    commands={
        "suppression": Command(
            path=".command:suppression",
            line="Add, release and list addresses that get no mail.",
            task="Programs and people",
        )
    },
    sections={"suppressions": ".config:Suppressions"},
    settling=(".bounces:SETTLING", ".bounces:SOFT_SETTLING"),
    routes={"pages": ".pages:PAGES"},
    doctor_checks=(".doctor_check:checks",),
    explainers=(".explainer:EXPLAINER",),
    process_parts=(".watch:add_watch", ".bounces:add_settings"),
    recipient_looks=(".recipient_look:begin_look",),
    stages={"DeadlineStage": ".complaint_stage:ComplaintStage"},
)
