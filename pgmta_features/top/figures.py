"""Figures of the last seconds, by few cheap statements: the queue itself is not read."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pgmta.postgres.operator import OperatorConnection
from pgmta.store.queries import feature_queries

_SQL = feature_queries("top")
RATES_WINDOW_S = 10.0
"""A rate is the mean of this time."""

HOSTS_WINDOW_S = 60.0
"""The figures of hosts are about attempts of this time."""

_MAX_HOSTS = 1000
_HOSTS_INTERVAL_S = 5.0


@dataclass(frozen=True, slots=True)
class HopCount:
    """Rows of one next hop by status, of the last count; None is the name of the rest."""

    next_hop: str | None
    rows: dict[str, int]
    due: int
    oldest_due: datetime | None

    @property
    def waiting(self) -> int:
        """The rows that are to be delivered."""
        return sum(self.rows.get(status, 0) for status in ("QUEUED", "DEFERRED", "SENDING"))


@dataclass(slots=True)
class Figures:
    """The figures of one look. Rates are rows per second."""

    at: datetime
    rates: dict[str, float] = field(default_factory=dict)
    """By event, and `accepted`; that one is absent at the first look."""
    counted_at: datetime | None = None
    """When the queue was counted; None: never."""
    share: float = 1.0
    """The least part of the queue that the count read; below 1 it is an estimate."""
    oldest_due: datetime | None = None
    hops: list[HopCount] = field(default_factory=list)
    hosts: list[dict[str, Any]] = field(default_factory=list)
    workers: list[dict[str, Any]] = field(default_factory=list)
    """Each has `rate` too: rows done per second between its last two heartbeats, None at first."""


class LiveFigures:
    """Reads figures over a connection with the settings OF_THE_LOG."""

    def __init__(self, db: OperatorConnection) -> None:
        self._db = db
        self._accepted: list[tuple[datetime, int]] = []  # times and numbers within RATES_WINDOW_S
        self._counted: datetime | None = None
        self._hops: list[HopCount] = []
        self._hosts: list[dict[str, Any]] = []
        self._hosts_at: datetime | None = None
        self._beats: dict[tuple[str, str], tuple[datetime, int, float | None]] = {}

    async def look(self) -> Figures:
        """Return the figures of now. Raises psycopg.Error."""
        now = await self._db.row(_SQL["now"])
        assert now  # noqa: S101 - for the type checker
        found = Figures(now["at"], share=now["share"], oldest_due=now["oldest_due"])
        events = await self._db.rows(_SQL["events"], {"seconds": RATES_WINDOW_S})
        found.rates = {row["event"]: row["attempts"] / RATES_WINDOW_S for row in events}
        found.rates |= self._accepted_rate(now["at"], now["accepted"])
        if now["counted_at"].year > 2:  # otherwise it is -infinity
            found.counted_at = now["counted_at"]
        if now["counted_at"] != self._counted:
            self._counted, self._hops = now["counted_at"], await self._read_hops()
        if not self._hosts_at or (now["at"] - self._hosts_at).total_seconds() >= _HOSTS_INTERVAL_S:
            params = {"seconds": HOSTS_WINDOW_S, "most": _MAX_HOSTS}
            self._hosts = await self._db.rows(_SQL["hosts"], params)
            self._hosts_at = now["at"]
        found.hops, found.hosts = self._hops, self._hosts
        found.workers = await self._read_workers()
        return found

    def _accepted_rate(self, at: datetime, accepted: int) -> dict[str, float]:
        self._accepted.append((at, accepted))
        while (
            len(self._accepted) > 2
            and (at - self._accepted[1][0]).total_seconds() >= RATES_WINDOW_S
        ):
            self._accepted.pop(0)
        first, number = self._accepted[0]
        seconds = (at - first).total_seconds()
        return {"accepted": (accepted - number) / seconds} if seconds > 0 else {}

    async def _read_hops(self) -> list[HopCount]:
        groups: dict[str | None, list[dict[str, Any]]] = {}
        for row in await self._db.rows(_SQL["counts"]):
            groups.setdefault(row["next_hop"], []).append(row)
        return [
            HopCount(
                hop,
                {row["status"]: row["rows"] for row in rows},
                sum(row["due"] for row in rows),
                min((row["oldest_due"] for row in rows if row["oldest_due"]), default=None),
            )
            for hop, rows in groups.items()
        ]

    async def _read_workers(self) -> list[dict[str, Any]]:
        workers = await self._db.rows(_SQL["workers"])
        beats = {}
        for row in workers:
            key = row["owner"], row["name"]
            seen, handled, rate = self._beats.get(key, (row["seen_at"], row["handled"], None))
            if row["seen_at"] > seen:
                seconds = (row["seen_at"] - seen).total_seconds()
                rate = max(0.0, (row["handled"] - handled) / seconds)
            beats[key] = row["seen_at"], row["handled"], rate
            row["rate"] = rate
        self._beats = beats
        return workers
