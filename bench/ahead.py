"""A million rows that are scheduled ahead, what a claim reads beside them, and a lost lease."""

import asyncio
import time
from typing import Any

import psycopg

from bench.database import insert, rest
from bench.progress import Progress
from pgmta.postgres.link import Link
from pgmta.store.queue.claim import SESSION, Claims

DAYS = 30
FIRST = 2_000_000_000_000  # id of the first message that is scheduled ahead
STEP = 100_000  # rows of a commit
CLAIMED = 100  # rows of a claim
WAITING = 2000  # rows that claims find, of 200 domains
CLAIM = b"claim AS ("
"""Only the statements of a claim have this."""

_SCHEDULE = """
WITH numbers AS (
    SELECT %(first)s + n AS id, 'd' || n %% %(domains)s || '.ahead.example' AS domain,
        now() + interval '1 hour' + random() * make_interval(days => %(days)s) AS send_at
    FROM generate_series(%(from)s::bigint, %(to)s::bigint) AS n
), bodies AS (
    INSERT INTO messages (id, size, trace, body)
    SELECT id, 20, E'Received: by bench\\r\\n', E'Subject: waiting\\r\\n\\r\\n' FROM numbers
)
INSERT INTO queue (id, message_id, sender, sender_domain, recipient, domain, status, once, ts,
    next_attempt, send_at)
SELECT nextval('scheduled_ids'), id, 'source@bench.example', 'bench.example', id || '@' || domain,
    domain, 'SCHEDULED', true, send_at, send_at, send_at
FROM numbers
"""
_LOSE = """
WITH body AS (
    INSERT INTO messages (id, size, trace, body)
    VALUES (nextval('message_ids'), 20, E'Received: by bench\\r\\n', E'Subject: lost\\r\\n\\r\\n')
    RETURNING id
), token AS (SELECT nextval('lease_tokens') AS token)
INSERT INTO queue (message_id, sender, sender_domain, recipient, domain, status, once, attempts,
    lease_since, lease_until, lease_owner, lease_token, begun)
SELECT id, 'source@bench.example', 'bench.example', 'lost@dead.example', 'dead.example', 'SENDING',
    true, 1, now() - interval '1 minute', now(), 'gone@bench:1', token, token
FROM body, token RETURNING message_id
"""


def schedule(uri: str, rows: int, domains: int) -> None:
    """Schedule that many rows with `once`, at random times of the next 30 days."""
    progress = Progress("schedule", rows)
    with psycopg.connect(uri, autocommit=True) as connection:
        for first in range(0, rows, STEP):
            last = min(rows, first + STEP)
            values = {"first": FIRST, "from": first, "to": last - 1, "domains": domains}
            connection.execute(_SCHEDULE, values | {"days": DAYS})
            progress.show(last)
    if rows:
        progress.end()


class Explained(Link):
    """Runs the statements of a claim with EXPLAIN, and notes the buffers that they touch.

    Each entry of `buffers` has all, and those without `messages`. The index of that table has one
    level more if there are a million. The claim gets an answer without rows. After the first
    statement it says that more is due, so that the claim goes on by domain. Then nothing is due.
    """

    def __init__(self, uri: str) -> None:
        super().__init__(uri, "bench claim", SESSION)
        self.buffers: list[tuple[int, int]] = []

    async def run(
        self, query: Any, params: dict[str, Any] | None = None, *, tries: int = 10
    ) -> list[tuple[Any, ...]]:
        """Run it; a claim's statement takes its rows."""
        if CLAIM not in query:
            return await super().run(query, params, tries=tries)
        explain = b"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + bytes(query)
        ((plans,),) = await super().run(explain, params, tries=tries)
        plan = plans[0]["Plan"]
        self.buffers.append((_touched(plan), _touched(plan) - _of_messages(plan)))
        version = (params or {})["version"]
        return [(version, len(self.buffers) == 1, "", None, time.time(), *[None] * 17)]


def _touched(node: dict[str, Any]) -> int:
    return int(node["Shared Hit Blocks"] + node["Shared Read Blocks"])


def _of_messages(node: dict[str, Any]) -> int:
    if node.get("Relation Name") == "messages":
        return _touched(node)
    return sum(map(_of_messages, node.get("Plans", ())))


async def _claim(uri: str) -> list[tuple[int, int]]:
    link = Explained(uri)
    try:
        await Claims(link, "bench@bench:1", 60.0).claim(CLAIMED, [])
    finally:
        await link.close()
    return link.buffers


def claim_buffers(uri: str) -> dict[str, tuple[int, int]]:
    """Return the buffers that a claim of 100 rows touches, by time and by domain.

    The first number is of all, and the second without messages. The rows that the claim finds are
    queued before, and gone afterwards.
    """
    with psycopg.connect(uri, autocommit=True) as connection:
        for number in range(200):
            first = number * (WAITING // 200) + 1
            insert(connection, first, first + WAITING // 200 - 1, f"d{number}.example")
        rest(uri)
        by_time, by_domain = asyncio.run(_claim(uri))
        connection.execute("DELETE FROM queue WHERE status <> 'SCHEDULED'")
        rest(uri)
    return {"by time": by_time, "by domain": by_domain}


def lose_lease(connection: psycopg.Connection[Any], patience: float) -> float | None:
    """Leave a row whose worker died in a transaction, with `once`; its lease is over now.

    Return the seconds until it is on hold, None if it takes longer than `patience`.
    """
    row = connection.execute(_LOSE).fetchone()
    began = time.monotonic()
    status = "SELECT status FROM queue WHERE message_id = %s"
    while connection.execute(status, row).fetchone() != ("HOLD",):
        if time.monotonic() - began > patience:
            return None
        time.sleep(0.02)
    return time.monotonic() - began
