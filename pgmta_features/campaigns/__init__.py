"""Campaigns: lists of recipients whose mail is made as it goes, and what became of each.

Its page is docs/programs/campaigns.md.
"""

from pgmta.features import Command, Feature

FEATURE = Feature(
    needs=("rates", "suppressions"),
    schema=(
        "schema/campaigns.sql",
        "schema/windows.sql",
        "schema/jobs.sql",
        "schema/feed.sql",
        "schema/lists.sql",
        "schema/changes.sql",
        "schema/suppressions.sql",
        "schema/expiry.sql",
    ),
    commands={
        "campaign": Command(
            path=".commands.campaign:campaign",
            line="Send one message to many recipients, at the rate of a credential.",
            task="Programs and people",
        )
    },
    looks=(".feed:DUE",),
    duties=(".jobs:DUTY", ".expiry:DUTY"),
    loops={"campaigns": ".feeder:feed_campaigns"},
    more_keys={"retention": ".config:CampaignRetention"},
    settling=(".outcomes:SETTLING",),
    beginning=(".outcomes:BEGINNING",),
)
