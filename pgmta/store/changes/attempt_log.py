"""Follows the log: entries of `attempts` as they are committed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Self

from pgmta.postgres.operator import OF_THE_LOG, OperatorConnection, connect_operator
from pgmta.selection import Selection, parse
from pgmta.store.changes.search import Wanted
from pgmta.store.queries import bracketed, queries

_SQL = queries("attempt_log")
_LINE_KEY = ("message_id", "row_id", "lease_token", "event", "ended_at")
_COMMIT_DELAY = timedelta(seconds=60)  # an outcome may wait so long for its commit


def of_attempts(fields: Mapping[str, Sequence[str]]) -> Selection:
    """Return the selection of texts by columns of attempts. Raises ValueError.

    A host without a port is meant with each port.
    """
    hosts = [
        spelling
        for text in fields.get("host", ())
        for spelling in ((text,) if "*" in text or ":" in text else (text, f"{text}:*"))
    ]
    return parse(**{**fields, "host": hosts})


class AttemptLog:
    """Reads the log over a separate connection, first its end, then new entries.

    Entries have the time of their attempt, and transactions commit them in another order. A look
    reads the last minute again: only entries of transactions that were not over at the former look.
    Those that it has returned are remembered for that minute. So none is missed, and none comes
    twice. An entry that was committed over a minute after its attempt is left out. After a
    lost connection it is not. Raises ValueError as `Wanted` does; StoreUnavailable when its context
    begins.
    """

    _db: OperatorConnection

    def __init__(self, uri: str, wanted: Wanted) -> None:
        self._uri = uri
        parts: dict[str, str | bytes] = {
            "looked": _SQL["looked"],
            "columns": _SQL["columns"],
            "where": bracketed(wanted.in_log()),
        }
        self._last = _SQL["last"].fill(**parts)
        self._fresh = _SQL["fresh"].fill(**parts)
        self._horizon = 0
        self._looked: datetime
        # Times of the last look before a lost connection, and of the first one after it.
        self._lost: tuple[datetime, datetime] | None = None
        self._shown: dict[tuple[Any, ...], datetime] = {}

    async def __aenter__(self) -> Self:
        self._db = await connect_operator(self._uri, OF_THE_LOG)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._db.close()

    async def last(self, seconds: float, most: int | None) -> list[dict[str, Any]]:
        """Return the last entries of this time span, at most this number. Raises psycopg.Error.

        Those that are too old or too many count as returned: `fresh` leaves them out.
        """
        async with self._db.transaction():
            # both statements have to see the same rows, also beside a long transaction
            await self._db.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            params = {"seconds": seconds, "most": most}
            found = self._new(await self._db.rows(self._last, params))
            await self.fresh()
        return found

    async def fresh(self) -> list[dict[str, Any]]:
        """Return the entries that are new since the last call of this or `last`.

        Raises psycopg.Error.
        """
        since = (self._lost[0] if self._lost else self._looked) - _COMMIT_DELAY
        params = {"since": since, "horizon": self._horizon}
        rows = self._new(await self._db.rows(self._fresh, params), since)
        if self._lost and self._looked > self._lost[1] + _COMMIT_DELAY:
            self._lost = None
        return rows

    async def connect(self) -> None:
        """Open the connection anew. Raises StoreUnavailable.

        For a minute from then on looks go back to the time of the loss, because outcomes waited.
        """
        await self._db.close()
        self._db = await connect_operator(self._uri, OF_THE_LOG)
        before = self._lost[0] if self._lost else self._looked
        row = await self._db.row("SELECT now() AS at", {})
        assert row  # noqa: S101 - for the type checker
        self._lost = before, row["at"]

    def _new(
        self, rows: list[dict[str, Any]], since: datetime | None = None
    ) -> list[dict[str, Any]]:
        """Return the entries among `rows` that were not returned yet, the oldest first."""
        self._looked, self._horizon = rows[0]["looked_at"], rows[0]["horizon"]
        kept = since or self._looked - _COMMIT_DELAY
        self._shown = {key: ended for key, ended in self._shown.items() if ended > kept}
        found = []
        for row in reversed(rows):
            del row["looked_at"], row["horizon"]
            key = tuple(row[name] for name in _LINE_KEY)
            if row["ended_at"] is None or key in self._shown:
                continue
            if row["ended_at"] > kept:
                self._shown[key] = row["ended_at"]
            found.append(row)
        return found
