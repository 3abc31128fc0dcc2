"""Traces: orders of operators to keep the transcripts of all attempts that match."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from pgmta.errors import PgmtaError
from pgmta.logs import get
from pgmta.model import Item
from pgmta.postgres.link import Link
from pgmta.postgres.operator import OperatorConnection
from pgmta.selection import Selection, parse
from pgmta.store.queries import queries

FIELDS = ("domain", "recipient", "sender", "tenant", "priority", "metadata")
"""The lists of texts that a trace may have."""

_SQL = queries("traces")
_COMMIT_DELAY = timedelta(seconds=60)  # an outcome may wait so long for its commit

log = get("traces")


@dataclass(frozen=True, slots=True)
class Trace:
    """One trace, and the mail that it is for."""

    id: int
    selection: Selection

    @classmethod
    def of(cls, number: int, wanted: Any) -> Trace:
        """Return the trace of a row of the table. Raises ValueError if it is malformed."""
        if not isinstance(wanted, dict) or not set(wanted) <= set(FIELDS):
            raise ValueError(f"expected lists by {', '.join(FIELDS)}")
        for texts in wanted.values():
            if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
                raise ValueError("expected lists of texts")
        return cls(number, parse(**wanted))

    def matches(self, item: Item) -> bool:
        """Return whether attempts for the row are to be kept."""
        try:
            return self.selection.takes(item)
        except (ValueError, RecursionError):  # raised for metadata that can't be read
            return False


class Traces:
    """The traces as queued sees them. Each method raises StoreUnavailable."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._malformed: set[int] = set()

    async def active(self) -> list[Trace]:
        """Return the traces that last. One that is malformed is left out, and logged once."""
        found = []
        for number, wanted in await self._link.run(_SQL["active"]):
            try:
                found.append(Trace.of(number, json.loads(wanted)))
            except (ValueError, RecursionError) as error:
                if number not in self._malformed:
                    log.warning("a trace is malformed", trace=number, reason=str(error))
                self._malformed.add(number)
        return found

    async def remove_traces(self) -> None:
        """Remove traces that ended over a day ago."""
        await self._link.run(_SQL["remove"])


class TraceOrders:
    """Traces as an operator orders, lists and follows them. Methods raise psycopg.Error."""

    def __init__(self, db: OperatorConnection) -> None:
        self._db = db
        self._shown: dict[tuple[Any, ...], datetime] = {}

    async def start(self, wanted: dict[str, list[str]], seconds: float, who: str) -> dict[str, Any]:
        """Begin a trace; return its `id` and `created_at`."""
        text = json.dumps(wanted)
        async with self._db.transaction():
            params = {"who": who, "seconds": seconds, "wanted": text}
            row = await self._db.row(_SQL["start"], params)
            if row is None:
                raise PgmtaError("the trace was not stored")
            await self._db.audit(who, "trace start", text, {"trace": row["id"], "seconds": seconds})
        return row

    async def stop(self, number: int, who: str) -> bool:
        """End a trace; return False if none of that number lasts."""
        async with self._db.transaction():
            row = await self._db.row(_SQL["stop"], {"id": number})
            if row:
                await self._db.audit(who, "trace stop", row["wanted"], {"trace": number})
        return row is not None

    async def last_day(self) -> list[dict[str, Any]]:
        """Return the traces of the last day."""
        return await self._db.rows(_SQL["list"])

    async def unaware(self, since: datetime) -> tuple[int, int]:
        """Return the number of delivering workers, and of those that do not know a trace yet."""
        row = await self._db.row(_SQL["unaware"], {"since": since}) or {}
        return row["workers"], row["unaware"]

    async def lasts(self, number: int) -> bool:
        """Return whether the trace lasts."""
        row = await self._db.row(_SQL["lasts"], {"id": number})
        return bool(row and row["lasts"])

    async def fresh(self, number: int, since: datetime) -> list[dict[str, Any]]:
        """Return the transcripts of a trace that this object has not returned yet."""
        newest = max(self._shown.values(), default=since)
        since = max(since, newest) - _COMMIT_DELAY
        self._shown = {key: ended for key, ended in self._shown.items() if ended > since}
        rows = await self._db.rows(_SQL["fresh"], {"id": number, "since": since})
        found = []
        for row in rows:
            key = row["message_id"], row["lease_token"], row["ended_at"], *row["row_ids"]
            if key not in self._shown:
                self._shown[key] = row["ended_at"]
                found.append(row)
        return found
