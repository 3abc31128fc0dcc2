"""enqueue: mail over the connection of the program, in the transaction that is open there."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Final, Protocol, overload

import psycopg
from psycopg.rows import tuple_row

from pgmta.client.mail_json import MailJson, as_text, mail_json
from pgmta.client.results import SendResult, stored
from pgmta.compose.submitted_mail import SubmittedMail
from pgmta.errors import SubmissionError
from pgmta.store.changes.sql_interface import SUBMIT_TEXT, Answer, read_text
from pgmta.tracing import SubmitSpan, submit_span

_ACCEPTED_KINDS: Final = (
    "give a psycopg Connection or AsyncConnection, an SQLAlchemy Connection, Session, "
    "AsyncConnection or AsyncSession, or a connection of Django"
)
_SQLALCHEMY_CLASSES: Final = (
    ("sqlalchemy.engine", "Connection"), ("sqlalchemy.orm", "Session"),
    ("sqlalchemy.orm", "scoped_session"),
)  # fmt: skip
_DJANGO_CLASSES: Final = (
    ("django.db.backends.base.base", "BaseDatabaseWrapper"),
    ("django.utils.connection", "ConnectionProxy"),
)


class AsyncAlchemy(Protocol):
    """AsyncConnection or AsyncSession of SQLAlchemy, which has this method and no other has."""

    def run_sync(self, fn: Any, /, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
        """Call the function with the connection or session behind it."""


@overload
def enqueue(
    connection: psycopg.AsyncConnection[Any] | AsyncAlchemy, mail: SubmittedMail,
    *, wake: bool = False,
) -> Coroutine[Any, Any, int]: ...  # fmt: skip
@overload
def enqueue(
    connection: psycopg.Connection[Any], mail: SubmittedMail, *, wake: bool = False
) -> int: ...
@overload
def enqueue(connection: Any, mail: SubmittedMail, *, wake: bool = False) -> int: ...
def enqueue(
    connection: Any, mail: SubmittedMail, *, wake: bool = False
) -> int | Coroutine[Any, Any, int]:
    """Put mail into the queue in the transaction of a connection; return the message id.

    The connection is one of psycopg, SQLAlchemy or Django. Of an asynchronous one the answer is
    awaited. The mail is sent if the transaction commits. The call is one statement, also through
    pgbouncer, and changes nothing of the connection. With `wake` it notifies the workers at the
    commit, which many programs at once should leave out (docs/programs/sql.md). Raises
    SubmissionError for bad mail, and the transaction goes on. Raises TypeError and ValueError for
    values of another type, and the errors of the driver.
    """
    with submit_span() as span:
        text = as_text([mail_json(mail, span.traceparent, ascii_only=True)])
        answer = submit_text(connection, text, wake=wake)
        if isinstance(answer, Coroutine):
            return _later(answer, span.leave_open())
        return span.sent(_only(answer))


@overload
def enqueue_many(
    connection: psycopg.AsyncConnection[Any] | AsyncAlchemy, mails: Iterable[SubmittedMail],
    *, wake: bool = False,
) -> Coroutine[Any, Any, list[SendResult]]: ...  # fmt: skip
@overload
def enqueue_many(
    connection: psycopg.Connection[Any], mails: Iterable[SubmittedMail], *, wake: bool = False
) -> list[SendResult]: ...
@overload
def enqueue_many(
    connection: Any, mails: Iterable[SubmittedMail], *, wake: bool = False
) -> list[SendResult]: ...
def enqueue_many(
    connection: Any, mails: Iterable[SubmittedMail], *, wake: bool = False
) -> list[SendResult] | Coroutine[Any, Any, list[SendResult]]:
    """Put mails into the queue as `enqueue` does; return the id or the error of each, in order.

    All of them are one statement, so they are in memory together. A bad mail stops no other.
    Raises TypeError for another connection or no list, and the errors of the driver.
    """
    if not isinstance(mails, Iterable):
        raise TypeError(f"mails: give a list of mails, and not {type(mails).__name__}")
    with submit_span() as span:
        made = [_made(mail, span.traceparent) for mail in mails]
        text = as_text(each for each in made if not isinstance(each, Exception))
        answer = submit_text(connection, text, wake=wake)
        if isinstance(answer, Coroutine):
            return _many_later(answer, made, span.leave_open())
        results = _results(made, answer)
        span.sent_many(result.error for result in results)
        return results


def _made(mail: SubmittedMail, traceparent: str) -> MailJson | Exception:
    try:
        return mail_json(mail, traceparent, ascii_only=True)
    except (SubmissionError, TypeError, ValueError) as error:
        return error


def _results(made: Iterable[MailJson | Exception], answer: Answer) -> list[SendResult]:
    answers = iter(answer)
    found = [each if isinstance(each, Exception) else next(answers) for each in made]
    return [stored(each) if isinstance(each, int) else SendResult(None, each) for each in found]


def submit_text(connection: Any, mails: str, *, wake: bool = False) -> Any:
    """Run the statement on whatever the connection is; return its Answer, or what to await."""
    return call_on(
        connection, _psycopg, _psycopg_later, _sqlalchemy, _django, mails=mails, wake=wake
    )


def call_on(
    connection: Any,
    psycopg_: Callable[..., Any],
    psycopg_later: Callable[..., Any],
    sqlalchemy: Callable[..., Any],
    django: Callable[..., Any],
    **given: Any,
) -> Any:
    """Call the function for this kind of connection; return its result, or what to await.

    That for SQLAlchemy gets the function `text` of SQLAlchemy too. Raises TypeError.
    """
    if isinstance(connection, psycopg.AsyncConnection):
        return psycopg_later(connection, **given)
    if isinstance(connection, psycopg.Connection):
        return psycopg_(connection, **given)
    if _is_one_of(connection, _SQLALCHEMY_CLASSES):
        return _of_alchemy(connection, sqlalchemy, **given)
    if _is_one_of(connection, _DJANGO_CLASSES):
        _require(connection.vendor)
        return django(connection, **given)
    if hasattr(connection, "run_sync"):
        return connection.run_sync(_of_alchemy, sqlalchemy, **given)
    kind = type(connection)
    # sqlite3 and others have a Connection too
    where = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    raise TypeError(f"connection: {_ACCEPTED_KINDS}, and not {where}{kind.__qualname__}")


def _psycopg(connection: psycopg.Connection[Any], mails: str, *, wake: bool) -> Answer:
    with psycopg.Cursor(connection, row_factory=tuple_row) as cursor:
        cursor.execute(SUBMIT_TEXT[wake], {"mails": mails}, prepare=False)
        return read_text(*cursor.fetchall()[0])


async def _psycopg_later(
    connection: psycopg.AsyncConnection[Any], mails: str, *, wake: bool
) -> Answer:
    async with psycopg.AsyncCursor(connection, row_factory=tuple_row) as cursor:
        await cursor.execute(SUBMIT_TEXT[wake], {"mails": mails}, prepare=False)
        return read_text(*(await cursor.fetchall())[0])


def _of_alchemy(connection: Any, function: Callable[..., Any], **given: Any) -> Any:
    bind = connection.get_bind() if hasattr(connection, "get_bind") else connection
    _require(bind.dialect.name)
    return function(connection, sys.modules["sqlalchemy"].text, **given)


def _sqlalchemy(connection: Any, text: Any, mails: str, *, wake: bool) -> Answer:
    statement = SUBMIT_TEXT[wake].decode().replace("%(mails)s", ":mails")
    return read_text(*connection.execute(text(statement), {"mails": mails}).one())


def _django(connection: Any, mails: str, *, wake: bool) -> Answer:
    with connection.cursor() as cursor:
        cursor.execute(SUBMIT_TEXT[wake].decode(), {"mails": mails})
        return read_text(*cursor.fetchall()[0])


def _require(database: str) -> None:
    if database != "postgresql":
        raise TypeError(f"connection: it is one to {database}, and the queue is in PostgreSQL")


def _is_one_of(value: object, kinds: Sequence[tuple[str, str]]) -> bool:
    """Return whether a value is of such a class; a module that is not loaded has no values."""
    modules = ((sys.modules.get(module), name) for module, name in kinds)
    return any(module and isinstance(value, getattr(module, name)) for module, name in modules)


def _only(answer: Answer) -> int:
    [found] = answer
    if isinstance(found, SubmissionError):
        raise found
    return found


async def _later(answer: Coroutine[Any, Any, Answer], span: SubmitSpan) -> int:
    with span:
        return span.sent(_only(await answer))


async def _many_later(
    answer: Coroutine[Any, Any, Answer], made: Sequence[MailJson | Exception], span: SubmitSpan
) -> list[SendResult]:
    with span:
        results = _results(made, await answer)
        span.sent_many(result.error for result in results)
        return results
