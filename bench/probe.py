"""Measure the cost of a claim and the size of the tables while pgmta works."""

import asyncio
import contextlib
import statistics
import threading
import time
from collections.abc import Sequence
from typing import Any

import psycopg

from bench.progress import log
from pgmta.postgres.link import Link
from pgmta.store.claim import SESSION, Claims

LIMIT = 100  # rows, what a worker with default settings asks for
TIMES = 5
KINDS: dict[str, tuple[str, dict[str, Any]]] = {  # by the name of the figures
    "front": ("claim_by_time", {"window": LIMIT + 64, "wide": False}),
    "walk": ("claim_by_domain", {"cursor": "", "level": 1 << 14, "steps": 512}),
}
MB = 1 << 20

SIZES = """
SELECT
    sum(pg_relation_size(c.oid)) FILTER (WHERE c.relname LIKE 'queue%'),
    sum(pg_indexes_size(c.oid)) FILTER (WHERE c.relname LIKE 'queue%'),
    sum(pg_table_size(c.oid)) FILTER (WHERE c.relname LIKE 'message%'),
    sum(pg_indexes_size(c.oid)) FILTER (WHERE c.relname LIKE 'message%'),
    sum(pg_total_relation_size(c.oid)) FILTER (WHERE c.relname LIKE 'attempts%'),
    sum(s.n_dead_tup) FILTER (WHERE c.relname LIKE 'queue%'),
    sum(s.autovacuum_count) FILTER (WHERE c.relname LIKE 'queue%')
FROM pg_class c LEFT JOIN pg_stat_user_tables s ON s.relid = c.oid
WHERE c.relkind = 'r' AND c.relnamespace = 'public'::regnamespace
"""
NAMES = (
    "queue MB",
    "queue index MB",
    "messages MB",
    "messages index MB",
    "attempts MB",
    "dead rows",
    "vacuums",
)


class Trial(Claims):
    """Claims as the worker's, but explained and taken back."""

    async def explain(self, name: str, **more: Any) -> dict[str, Any]:
        """Return the plan of one claim, with its time and the buffers it touched."""
        await self._rules.prepare()
        self._compose()
        params = {"limit": LIMIT, "siblings": 100, "busy": [], "version": self._rules.version}
        params |= {"inline": 1 << 17, "budget": 1 << 25, "overdue": 0.0}
        statement = b"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) " + self._statements[name]
        async with self._link.use() as connection, connection.transaction(force_rollback=True):
            cursor = await connection.execute(statement, params | self._fixed | more, prepare=False)
            row = await cursor.fetchone()
        assert row
        plan: dict[str, Any] = row[0][0]
        return plan


class Probe:
    """Samples of a database: claim time (median of a few), buffers a claim touches, sizes."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self.samples: list[dict[str, float]] = []

    async def _claim(self) -> dict[str, float]:
        link = Link(self._uri, "bench probe", SESSION)
        trial = Trial(link, "bench", 60.0)
        figures: dict[str, float] = {}
        try:
            for name, (statement, more) in KINDS.items():
                plans = [await trial.explain(statement, **more) for _ in range(TIMES)]
                buffers = [int(plan["Plan"]["Shared Hit Blocks"]) for plan in plans]
                figures[f"{name} ms"] = statistics.median(plan["Execution Time"] for plan in plans)
                figures[f"{name} buffers"] = statistics.median(buffers)
        finally:
            await link.close()
        return figures

    def sample(self) -> dict[str, float]:
        """Take one; it is kept too."""
        figures = {"at": time.monotonic(), **asyncio.run(self._claim())}
        with psycopg.connect(self._uri, autocommit=True) as connection:
            row = connection.execute(SIZES).fetchone() or [0] * len(NAMES)
        for name, value in zip(NAMES, row, strict=True):
            figures[name] = float(value or 0) / (MB if name.endswith("MB") else 1)
        self.samples.append(figures)
        return figures


class Sampler(threading.Thread):
    """Take a sample every `every` seconds until `end`."""

    def __init__(self, uri: str, every: float) -> None:
        super().__init__(daemon=True)
        self.probe = Probe(uri)
        self._every = every
        self._over = threading.Event()
        self._since = time.monotonic()

    def run(self) -> None:
        """Sample and say so."""
        while not self._over.wait(self._every):
            with contextlib.suppress(psycopg.Error):
                log(describe(self.probe.sample(), self._since))

    def end(self) -> None:
        """Stop; returns when the sample under way is complete."""
        self._over.set()
        self.join()


def describe(sample: dict[str, float], started: float) -> str:
    """Return one line for a sample."""
    cells = [f"{sample['at'] - started:6.0f} s"]
    cells += [f"{name} {value:.4g}" for name, value in sample.items() if name != "at"]
    return ", ".join(cells)


def trend(samples: Sequence[dict[str, float]]) -> dict[str, float]:
    """Compare the last quarter of the samples with the first: medians, by figure."""
    part = max(1, len(samples) // 4)
    figures: dict[str, float] = {}
    for name in samples[0] if samples else ():
        if name != "at":
            early = statistics.median(sample[name] for sample in samples[:part])
            late = statistics.median(sample[name] for sample in samples[-part:])
            figures[f"{name}, first quarter"] = early
            figures[f"{name}, last quarter"] = late
            figures[f"{name}, most"] = max(sample[name] for sample in samples)
    return figures
