"""The rows of the queue by next hop, status and tenant, as a duty counts them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pgmta.model import NamedHop
from pgmta.postgres.link import Link
from pgmta.store.queries import queries
from pgmta.store.queue.labels import next_hop_of

_SQL = queries("queue_counts")
HOLDERS = ("session", "prepared", "slot", "standby")
"""Who may hold the horizon: the kinds of the view horizon_holders."""
_SEEN_BY_ALL = ("prepared", "slot")  # the others need the role pg_read_all_stats

_MAX_GROUPS = 1000
_MAX_WHOLE_OCTETS = 8 << 20  # of a partition that is read whole
_SAMPLE_OCTETS = 32 << 20  # of all larger partitions together: about 90,000 rows
_MAX_AGE_S = 48.0  # other processes count too, and counts of this age are young enough
SETTINGS = {
    "statement_timeout": "40s",
    "lock_timeout": "1s",
    "work_mem": "64MB",
    "jit": "off",
    "max_parallel_workers_per_gather": "0",
}
"""Of the connection that counts: by itself, and of one core."""


@dataclass(frozen=True, slots=True)
class GroupCount:
    """Rows with one next hop, status and tenant; the first two are None for the rest.

    `oldest` is the age of the oldest row in seconds. `oldest_due` says for how long the first of
    the due rows is due; None: none is.
    """

    next_hop: str | None
    status: str
    tenant: str | None
    rows: int
    due: int
    oldest: float
    oldest_due: float | None


@dataclass(frozen=True, slots=True)
class QueueCount:
    """All counts, and their age in seconds; `share` of the largest partition was read.

    `oldest_due` says for how long the first due row of all is due; None: none is. The holder of
    PostgreSQL's horizon, one of HOLDERS, keeps vacuum from the dead rows; None: none was seen.
    """

    age: float
    seconds: float
    share: float
    oldest_due: float | None
    groups: Sequence[GroupCount]
    dead_rows: int = 0
    horizon_holder: str | None = None
    horizon_transactions: int = 0
    sees_holders: bool = True

    @property
    def holders(self) -> dict[str, int]:
        """How many transactions old the holder of each kind is; 0: another one is older.

        Kinds that the login of queued does not see are left out.
        """
        return {
            kind: self.horizon_transactions if kind == self.horizon_holder else 0
            for kind in HOLDERS
            if self.sees_holders or kind in (*_SEEN_BY_ALL, self.horizon_holder)
        }


class QueueCounts:
    """Counts the queue, and reads the counts. Each raises StoreUnavailable, psycopg.Error."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def count(self, hops: Sequence[NamedHop], *, by_mail: bool) -> bool:
        """Count, unless another process has done so a moment ago; return whether it was done.

        The first of `hops` that has a row names its next hop; a row of none has its domain as next
        hop. `by_mail` says that more than the domain counts.
        """
        fields = {"least": _MAX_AGE_S, "exact": _MAX_WHOLE_OCTETS, "octets": _SAMPLE_OCTETS}
        parts = await self._link.run(_SQL["parts"], fields)
        if not parts:
            # to find out whether the queue is empty, or another process counts
            parts = [("QUEUED", 1.0)]
        hop = next_hop_of(hops)
        texts = [_part(*each, path=hop if by_mail else "domain") for each in parts]
        statement = _SQL["count"].fill(
            parts=b"\nUNION ALL\n".join(texts), next_hop="domain" if by_mail else hop
        )
        share = min(each[1] for each in parts)
        # not by Link.run, which would prepare a statement that differs each time
        async with self._link.use() as connection:
            cursor = await connection.execute(
                statement, {"least": _MAX_AGE_S, "most": _MAX_GROUPS, "share": share}, prepare=False
            )
            return bool(await cursor.fetchall())

    async def read_counts(self) -> QueueCount | None:
        """Return the last counts; None: there are none yet."""
        found = await self._link.run(_SQL["read"])
        if not found:
            return None
        groups = [GroupCount(*row) for row in await self._link.run(_SQL["groups"])]
        age, seconds, share, oldest_due, *horizon = found[0]
        return QueueCount(age, seconds, share, oldest_due, groups, *horizon)


def _part(status: str, share: float, *, path: str) -> bytes:
    sample = f" TABLESAMPLE SYSTEM ({100 * share:.4f})" if share < 1 else ""
    statuses = "'QUEUED', 'DEFERRED', 'SENDING'" if status == "QUEUED" else f"'{status}'"
    return _SQL["part"].fill(path=path, statuses=statuses, sample=sample, times=f"{1 / share:.6f}")
