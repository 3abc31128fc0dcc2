"""Mail in motion, for tests of changes to the tables meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import psycopg

from pgmta.model import Outcome, Reply
from pgmta.postgres.link import Link
from pgmta.states import Event
from pgmta.store.queue.claim import SESSION, Claims
from pgmta.store.queue.settle import Settlements
from tests.support.waiting import take_time

STILL = 600  # rows that no worker touches: they must be there at every moment
FILL = """
    WITH m AS (
        INSERT INTO messages (id, size, trace, body)
        SELECT g, 9, 'Received: x', ('body ' || g)::bytea FROM generate_series(%s::bigint, %s) AS g
        RETURNING id)
    INSERT INTO queue (message_id, sender, recipient, domain, metadata, next_attempt)
    SELECT id, 'a@example.org', id || '@example.com', 'd' || id %% 7 || '.example',
        CASE id %% 5 WHEN 0 THEN '{}' ELSE jsonb_build_object('_partid', (id %% 5)::text) END,
        now() + make_interval(secs => %s) FROM m"""


class Traffic:
    """Mail comes in, is claimed, delivered or deferred, and a reader reads, all at once."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.accepted = 0
        self.delivered: Counter[int] = Counter()
        self.lost: list[Any] = []
        self.errors: list[BaseException] = []
        self._stop = threading.Event()
        parts = "metadata->>'_partid' IN ('1', '2', '3')"
        works: list[Callable[[], Any]] = [
            self._intake,
            self._read,
            lambda: asyncio.run(self._work(parts)),
            lambda: asyncio.run(self._work(f"({parts}) IS NOT TRUE")),
        ]
        self._threads = [threading.Thread(target=self._guard, args=(work,)) for work in works]
        for thread in self._threads:
            thread.start()

    @property
    def moved(self) -> int:
        """Messages that came in, or rows that went out, whichever is less."""
        return min(self.accepted, len(self.delivered))

    def _guard(self, work: Callable[[], Any]) -> None:
        try:
            work()
        except BaseException as error:
            self.errors.append(error)

    def _intake(self) -> None:
        with psycopg.connect(self.uri, autocommit=True, prepare_threshold=0) as db:
            while not self._stop.is_set():
                first = 1_000_000 + self.accepted
                db.execute(FILL, (first, first + 9, 0))
                self.accepted += 10
                take_time(0.002)

    def _read(self) -> None:
        queries = [
            f"SELECT count(*), count(DISTINCT id), {STILL} FROM queue WHERE message_id <= {STILL}",
            f"SELECT count(*), count(DISTINCT id), {STILL // 5} FROM queue "
            f"WHERE metadata->>'_partid' IN ('2') AND message_id <= {STILL}",
        ]
        with psycopg.connect(self.uri, autocommit=True) as db:
            db.prepare_threshold = 20  # both kinds: planned each time, and prepared
            while not self._stop.is_set():
                for query in queries:
                    rows, ids, wanted = db.execute(query.encode()).fetchall()[0]
                    if (rows, ids) != (wanted, wanted):
                        self.lost.append((query, rows, ids))

    async def _work(self, where: str) -> None:
        link = Link(self.uri, "test", SESSION)
        claims, settlements = Claims(link, "test", 60, where), Settlements(link, "test")
        while not self._stop.is_set():
            outcomes = []
            for item in (await claims.claim(20, [])).items:
                again = item.attempts == 1 and item.id % 3 == 0
                event = Event.DEFER if again else Event.DELIVERED
                outcomes.append(
                    Outcome(item, event, Reply(250, "ok"), started=item.ts, ended=item.ts)
                )
            changed = await settlements.settle(outcomes)
            assert changed == {outcome.item.id for outcome in outcomes}
            self.delivered.update(o.item.id for o in outcomes if o.event is Event.DELIVERED)
        await link.close()

    def end(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        assert self.errors == []
