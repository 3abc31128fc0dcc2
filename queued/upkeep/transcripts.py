"""Transcripts: day partitions are made ahead, old ones are dropped; so are traces that ended."""

from __future__ import annotations

from pgmta.logs import get
from pgmta.postgres.link import Link
from pgmta.store.records.traces import Traces
from pgmta.store.records.transcripts import keep_partitions

EVERY = 3600.0  # seconds

log = get("upkeep")


async def keep_transcripts(link: Link, traces: Traces, retention: float) -> None:
    """Make missing partitions, drop those older than `retention` seconds, remove old traces."""
    made, dropped = await keep_partitions(link, retention)
    if made or dropped:
        log.info("transcripts partitions", made=made, dropped=dropped)
    await traces.remove()
