"""Finds mail by its addresses, Message-ID, metadata or numbers, in the queue and in the log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pgmta.postgres.operator import connect_operator
from pgmta.store.queries import bracketed, queries
from pgmta.store.queue.filters import alike, metadata_is, quoted

_SQL = queries("search")


@dataclass(frozen=True, slots=True)
class Wanted:
    """The fields of a search. Values of one field are alternatives; different fields must all hold.

    `*` stands for any text, and such a pattern ignores case. Without it the log is searched by
    index: an address as given, or with a domain in lower case.
    """

    recipient: Sequence[str] = ()
    sender: Sequence[str] = ()
    message_id_header: Sequence[str] = ()
    metadata: Sequence[str] = ()
    rows: Sequence[tuple[int, int]] = ()
    """Pairs of the numbers of a message and of a row."""

    def in_queue(self) -> str:
        """Return the condition on rows `q` of queue and their messages `m`.

        Raises ValueError, which names the flag.
        """
        headers = self.message_id_header
        return _all(
            [
                [alike("q.recipient", text) for text in self.recipient],
                [alike("q.sender", text) for text in self.sender],
                [_one_of("m.message_id_header", text, _bracketed) for text in headers],
                [metadata_is("q.metadata", text) for text in self.metadata],
                [f"q.message_id = {message} AND q.id = {row}" for message, row in self.rows],
            ]
        )

    def in_log(self) -> str:
        """Return the condition on rows `a` of attempts. Raises ValueError, which names the flag."""
        headers = self.message_id_header
        return _all(
            [
                [_one_of("a.recipient", text, _spellings) for text in self.recipient],
                [_one_of("a.sender", text, _spellings) for text in self.sender],
                [_one_of("a.message_id_header", text, _bracketed) for text in headers],
                [metadata_is("a.metadata", text) for text in self.metadata],
                [f"a.message_id = {message} AND a.row_id = {row}" for message, row in self.rows],
            ]
        )


def find(uri: str, wanted: Wanted, since: float, limit: int) -> list[dict[str, Any]]:
    """Return recipients of matching mail: those that wait first, each time the newest first.

    The log is searched for `since` seconds back. At most `limit` of each kind are returned.
    Raises ValueError as `Wanted` does, StoreUnavailable, psycopg.Error.
    """
    with connect_operator(uri) as db:
        waiting = _SQL["waiting"].fill(where=bracketed(wanted.in_queue()))
        rows = db.execute(waiting, {"limit": limit}).fetchall()
        gone = _SQL["gone"].fill(where=bracketed(wanted.in_log()))
        return rows + db.execute(gone, {"limit": limit, "since": since}).fetchall()


def _all(groups: Iterable[Sequence[str]]) -> str:
    return " AND ".join(f"({' OR '.join(group)})" for group in groups if group) or "true"


def _one_of(column: str, text: str, spellings: Any) -> str:
    if "*" in text:
        return alike(column, text)
    return f"{column} IN ({', '.join(quoted(each) for each in spellings(text))})"


def _spellings(address: str) -> list[str]:
    local, at, domain = address.rpartition("@")
    return sorted({address, address.lower(), f"{local}{at}{domain.lower()}"})


def _bracketed(value: str) -> list[str]:
    text = value.strip()
    return [text if text.startswith("<") else f"<{text}>"]
