"""Recipients of campaigns, then the campaigns themselves, go when their time is over."""

from __future__ import annotations

from functools import partial

from pgmta.store.admin.expiry import remove_batches
from pgmta.store.queries import feature_queries
from pgmta_features.campaigns.config import CampaignRetention
from queued.process.queued_process import QueuedProcess
from queued.upkeep.duty import Duty
from queued.upkeep.expiry import EXPIRY_INTERVAL_S, log_removed

_SQL = feature_queries("campaigns")


async def _expire(process: QueuedProcess) -> None:
    link, kept = process.link, process.config.section(CampaignRetention)
    recipients = await remove_batches(link, _SQL["expire_recipients"], age=kept.recipients)
    log_removed("recipients", recipients)
    campaigns = await remove_batches(link, _SQL["expire_campaigns"], age=kept.campaigns)
    log_removed("campaigns", campaigns)


DUTY = Duty("campaign expiry", EXPIRY_INTERVAL_S, lambda process: partial(_expire, process))
