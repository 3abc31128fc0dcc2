"""Campaigns: lists of recipients whose mail is made as it goes, and what became of each.

Its page is docs/programs/campaigns.md. Commands and most tables are still in the core.
"""

from pgmta.features import Feature

FEATURE = Feature(
    schema=("schema/expiry.sql",),
    looks=(".feed:DUE",),
    duties=(".jobs:DUTY", ".expiry:DUTY"),
    loops={"campaigns": ".feeder:feed_campaigns"},
    more_keys={"retention": ".config:CampaignRetention"},
    settling=(".outcomes:SETTLING",),
    beginning=(".outcomes:BEGINNING",),
)
