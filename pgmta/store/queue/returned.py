"""Notes in the log of attempts which mail came back after its delivery."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from pgmta.postgres.binary import Bigints, Texts
from pgmta.postgres.link import Link
from pgmta.store.queries import queries

_SQL = queries("returned")


@dataclass(frozen=True, slots=True)
class ReturnedRow:
    """A row whose mail came back, the day (UTC) on which it was delivered, and why it came back.

    Without `answer_class` it was not returned. A `complaint` of the recipient is noted too.
    """

    message_id: int
    row_id: int
    day: date
    answer_class: str
    reply: str
    complaint: bool = False


@dataclass(frozen=True, slots=True)
class LoggedAttempt:
    """The sender and the recipient of an attempt in the log."""

    sender: str
    recipient: str


class ReturnedLog:
    """Writes what came back; an attempt is noted once."""

    def __init__(self, link: Link) -> None:
        self.link = link
        """Its connection."""

    async def record(self, rows: Sequence[ReturnedRow]) -> list[LoggedAttempt | None]:
        """Note the rows; return the attempt of each, None if the log has none any more, or yet.

        Raises StoreUnavailable, psycopg.Error.
        """
        found: list[LoggedAttempt | None] = [None] * len(rows)
        values = {
            "messages": Bigints(row.message_id for row in rows),
            "rows": Bigints(row.row_id for row in rows),
            "days": Texts(row.day.isoformat() for row in rows),
            "classes": Texts(row.answer_class for row in rows),
            "replies": Texts(row.reply for row in rows),
            "complaints": [row.complaint for row in rows],
        }
        for place, sender, recipient in await self.link.run(_SQL["record"], values):
            if recipient is not None:
                found[place - 1] = LoggedAttempt(sender, recipient)
        return found
