"""Webhooks: events are posted to endpoints of applications (docs/programs/webhooks.md)."""

from pgmta.features import Command, Feature

FEATURE = Feature(
    needs=("events",),
    schema=("schema.sql",),
    commands={
        "webhook": Command(
            path=".command:webhook",
            line="Add and list endpoints to which events are posted, and post events again.",
            task="Programs and people",
        )
    },
    sections={"webhooks": ".config:WebhookSettings", "web/webhooks": ".config:WebhookKeys"},
    looks=(".leased_webhooks:ANY_WEBHOOK",),
    duties=(".retention:DUTY",),
    loops={"webhooks": ".poster:post"},
    doctor_checks=(".doctor_check:checks",),
    first_steps=(".first_step:STEP",),
)
