"""Suppressions: addresses that get no mail, because they bounced, complained or unsubscribed.

All mail is asked before its attempt. What came back and complaints add to them by a trigger on the
log. See docs/programs/suppressions.md.
"""

from pgmta.features import Command, Feature

FEATURE = Feature(
    schema=("schema.sql", "unsubscribing.sql"),
    commands={
        "suppression": Command(
            path=".command:suppression",
            line="Add, release and list addresses that get no mail of campaigns.",
            task="Programs and people",
        )
    },
    sections={"suppressions": ".config:Suppressions"},
    routes=(".pages:PAGES",),
    doctor_checks=(".doctor_check:checks",),
    explainers=(".explainer:EXPLAINER",),
    process_parts=(".watch:add_watch",),
    recipient_looks=(".recipient_look:begin_look",),
    stages={"DeadlineStage": ".complaint_stage:ComplaintStage"},
)
