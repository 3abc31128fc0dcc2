"""Calls the SQL functions of submission: submit_mails, cancel, status."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import psycopg

from pgmta.errors import SubmissionError
from pgmta.postgres.binary import Bigints, Bytes
from pgmta.postgres.link import Link
from pgmta.postgres.operator import OperatorConnection
from pgmta.store.queries import queries

_SQL = queries("sql_interface")

SUBMIT_TEXT: Final = {
    wake: _SQL["submit_text"].fill(wake=str(wake).lower()) for wake in (False, True)
}
"""Submits mails that are one text, the parameter `mails`; True wakes the workers after the commit.

The one row has the ids, problems and suppressed recipients, as JSON; `read_text` reads them.
"""

_IN_PYTHON: Final = {"from": "from_", "mails": ""}  # of a mail as a whole: its caller gave one mail


@dataclass(frozen=True, slots=True)
class SuppressedRecipient:
    """A recipient who gets nothing: the reason says since when, why and by what proof."""

    recipient: str
    reason: str


class MessageId(int):
    """The id of stored mail; `suppressed` are those of its recipients who get nothing."""

    suppressed: tuple[SuppressedRecipient, ...] = ()


type Answer = list[int | SubmissionError]
"""For each mail its message id, or why it is refused. A MessageId has suppressed recipients."""


class SqlInterface:
    """Calls the functions over a link, of which each call is a transaction."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def submit(self, mails: str, contents: Iterable[bytes], call: UUID) -> Answer:
        """Submit mails; a repetition of the same `call` gets the answer of the first one.

        Raises StoreUnavailable, AnswerLost, psycopg.Error.
        """
        params = {"mails": mails, "contents": Bytes(contents), "call": call}
        ((ids, *rest),) = await self._link.run(_SQL["submit_mails"], params)
        return answer_of(ids, *rest) if any(rest) else ids

    async def cancel(self, message_id: int, reason: str | None) -> int:
        """Cancel a message; return the number of recipients that were stopped.

        Raises SubmissionError, StoreUnavailable, psycopg.Error.
        """
        try:
            rows = await self._link.run(_SQL["cancel"], {"id": message_id, "reason": reason})
        except psycopg.Error as error:
            raise refused(error) from error
        return int(rows[0][0])

    async def status(self, ids: Sequence[int]) -> list[tuple[Any, ...]]:
        """Return the id and the state of each recipient. Raises StoreUnavailable, psycopg.Error."""
        return await self._link.run(_SQL["states"], {"ids": Bigints(ids)})


def read_text(ids: str, problems: str | None, suppressed: str | None) -> Answer:
    """Return the answer of `SUBMIT_TEXT`."""
    return answer_of(
        json.loads(ids), *(json.loads(text or "[]") for text in (problems, suppressed))
    )


def answer_of(
    ids: Sequence[int | None],
    problems: Sequence[dict[str, Any]] | None,
    suppressed: Sequence[dict[str, Any]] | None,
) -> Answer:
    """Return the answer that the columns of submit_mails() are."""
    found: list[Any] = list(ids)
    for each in suppressed or ():
        place = each["index"]
        stored = MessageId(found[place])
        stored.suppressed = (
            *getattr(found[place], "suppressed", ()),
            SuppressedRecipient(each["recipient"], each["reason"]),
        )
        found[place] = stored
    for problem in problems or ():
        found[problem["index"]] = _error_of(
            problem["argument"], problem["message"], problem["detail"], problem["hint"],
            problem["code"],
        )  # fmt: skip
    return found


async def cancel(db: OperatorConnection, message_id: int, reason: str | None) -> int:
    """Cancel a message; return the number of recipients that were stopped.

    Raises SubmissionError, psycopg.Error.
    """
    try:
        found = await db.rows(_SQL["cancel"], {"id": message_id, "reason": reason})
    except psycopg.Error as error:
        raise refused(error) from error
    return int(found[0]["stopped"])


async def status(db: OperatorConnection, ids: Sequence[int]) -> list[dict[str, Any]]:
    """Return the state of each recipient of these messages. Raises psycopg.Error."""
    return await db.rows(_SQL["status"], {"ids": list(ids)})


def refused(error: psycopg.Error) -> psycopg.Error | SubmissionError:
    """Return the error of an argument that the database refuses, or the same error."""
    diag = error.diag
    if not diag.column_name:
        return error
    return _error_of(
        diag.column_name, diag.message_primary or "", diag.message_detail, diag.message_hint,
        error.sqlstate,
    )  # fmt: skip


def _error_of(
    argument: str, message: str, detail: str | None, hint: str | None, code: str | None
) -> SubmissionError:
    reason = message.removeprefix(f"{argument}: ")
    name = _IN_PYTHON.get(argument, argument)
    return SubmissionError(name, reason, detail or "", hint or "", code or "")
