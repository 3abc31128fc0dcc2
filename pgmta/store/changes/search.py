"""Finds mail by addresses, Message-ID, client, metadata or numbers, in the queue and in the log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_network
from typing import Any

from pgmta.postgres.operator import OperatorConnection
from pgmta.selection import Selection, Term, parse
from pgmta.store.changes.listing import waits_for
from pgmta.store.queries import bracketed, queries

_SQL = queries("search")
_ALL_MAIL = Selection()


@dataclass(frozen=True, slots=True)
class Wanted:
    """The fields of a search. Values of one field are alternatives; different fields must all hold.

    `*` stands for any text, and such a pattern ignores case. Without it the log is searched by
    index: an address as given, or with a domain in lower case.
    """

    recipient: Sequence[str] = ()
    domain: Sequence[str] = ()
    """Domains of recipients. The queue has them by index; the log is read."""
    sender: Sequence[str] = ()
    tenant: Sequence[str] = ()
    message_id_header: Sequence[str] = ()
    metadata: Sequence[str] = ()
    clients: Sequence[str] = ()
    """Addresses or networks of the clients that handed mail over by SMTP."""
    submitted_by: Sequence[str] = ()
    """Users who handed mail over, or key:NAME."""
    rows: Sequence[tuple[int, int]] = ()
    """Pairs of the numbers of a message and of a row."""
    more: Selection = _ALL_MAIL
    """Further conditions, on columns of attempts: for the log alone."""

    def in_queue(self) -> str:
        """Return the condition on rows `q` of queue with their Message-ID.

        Raises ValueError, which names the flag.
        """
        return self._condition(parse(recipient=self.recipient, sender=self.sender), "q.", "id")

    def in_log(self, *, folded: bool = False) -> str:
        """Return the condition on rows `a` of attempts: by index, or `folded`, which ignores case.

        Raises ValueError, which names the flag.
        """
        addresses = (
            parse(recipient=self.recipient, sender=self.sender) if folded
            else Selection.every(
                _address("recipient", self.recipient), _address("sender", self.sender)
            )
        )  # fmt: skip
        return self._condition(addresses & self.more, "a.", "row_id")

    def _condition(self, addresses: Selection, prefix: str, row_id: str) -> str:
        headers = [text if "*" in text else _bracketed(text) for text in self.message_id_header]
        rest = parse(
            domain=self.domain,
            tenant=self.tenant,
            message_id_header=headers,
            metadata=self.metadata,
        )
        if self.submitted_by:
            rest &= Selection.every(Term.of("submitted_by", self.submitted_by))
        rows = " OR ".join(
            f"{prefix}message_id = {message} AND {prefix}{row_id} = {row}"
            for message, row in self.rows
        )
        parts = [(addresses & rest).condition(prefix)]
        if self.clients:
            among = ", ".join(f"'{_network(text)}'" for text in self.clients)
            parts.append(f"{prefix}client <<= ANY (ARRAY[{among}]::inet[])")
        if rows:
            parts.append(f"({rows})")
        return " AND ".join(parts)


async def find(
    db: OperatorConnection, wanted: Wanted, since: float, limit: int
) -> list[dict[str, Any]]:
    """Return recipients of matching mail: those that wait first, each time the newest first.

    The log is searched for `since` seconds back: by index, and if nothing is found, in any case
    of letters. At most `limit` of each kind are returned.
    Raises ValueError as `Wanted` does, psycopg.Error.
    """
    waiting = _SQL["waiting"].fill(where=bracketed(wanted.in_queue()), waits_for=waits_for())
    rows = await db.rows(waiting, {"limit": limit})
    # without an address, and with patterns, both are the same
    for condition in dict.fromkeys((wanted.in_log(), wanted.in_log(folded=True))):
        gone = _SQL["gone"].fill(where=bracketed(condition))
        rows += await db.rows(gone, {"limit": limit, "since": since})
        if rows:
            break
    return rows


def _network(text: str) -> str:
    try:
        return str(ip_network(text.strip(), strict=False))
    except ValueError:
        raise ValueError(f"--client: {text!r} is no IP address, and no network") from None


def _address(field: str, texts: Sequence[str]) -> Term | None:
    """Return the term of addresses as the index has them."""
    spellings = [spelling for text in texts if "*" not in text for spelling in _spellings(text)]
    return Term(field, spellings, [text for text in texts if "*" in text]) if texts else None


def _spellings(address: str) -> list[str]:
    local, at, domain = address.rpartition("@")
    return [address, address.lower(), f"{local}{at}{domain.lower()}"]


def _bracketed(value: str) -> str:
    text = value.strip()
    return text if text.startswith("<") else f"<{text}>"
