"""Client: mail of an asyncio program, with an answer for each."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from types import TracebackType
from typing import Final, Self

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict

from pgmta.client.mail_json import mail_json
from pgmta.client.mailer import Mailer
from pgmta.client.parcels import CLOSED_REASON, Batch, Found, Parcel
from pgmta.client.results import RecipientStatus, SendResult
from pgmta.compose.submitted_mail import SubmittedMail
from pgmta.errors import NotBegun
from pgmta.tracing import submit_span

_MAX_PATIENCE_S: Final = 1800
"""PostgreSQL keeps the answer of a call for an hour, so a later repetition would be a new call."""


class Client:
    """Puts mail into the queue, and knows what became of it.

    `uri` is the libpq URI of the database, without a connection pooler. Its login needs the role
    pgmta_submit. Mail goes over `connections`, that is their number. A call waits for PostgreSQL
    for at most `patience` seconds. A client belongs to the event loop of its first call. It
    connects then, and again if a connection was lost.
    """

    def __init__(self, uri: str, *, connections: int = 2, patience: float = 30.0) -> None:
        check_arguments(uri, connections, patience)
        self._uri, self._connections, self._patience = uri, connections, patience
        self._mailer: Mailer | None = None
        self._closed = False

    async def send(self, mail: SubmittedMail) -> int:
        """Store mail and return its message id; it is durable then, and will be sent once.

        If it is a `MessageId`, it names recipients who get nothing, because they are suppressed.
        Calls of many tasks share commits. A cancelled call is not sent, unless its commit has
        begun. Raises TypeError, ValueError and SubmissionError if the mail is bad: the text begins
        with the argument. Raises StoreUnavailable if PostgreSQL stays away, and Undecided if it is
        open whether it was stored. Raises LoginRefused and SchemaMismatch at once. Raises NotBegun
        after `close`, and psycopg.Error if the database refuses mail by a rule of its operators.
        """
        with submit_span() as span:
            mailer = self._started()
            made = mail_json(mail, span.traceparent)
            future: asyncio.Future[Found] = mailer.loop.create_future()
            mailer.put(Parcel([made], made.size, future))
            [found] = await future
            if isinstance(found, Exception):
                raise found
            return span.sent(found)

    async def send_many(self, mails: Iterable[SubmittedMail]) -> list[SendResult]:
        """Store mails, many in each commit; return the id or the error of each, in order.

        A bad mail stops no other. An iterator is read as its mails are stored. Raises an exception
        of the iterator once all mail before it has its answer.
        """
        with submit_span() as span:
            results = await self._send_many(mails, span.traceparent)
            span.sent_many(result.error for result in results)
            return results

    async def _send_many(
        self, mails: Iterable[SubmittedMail], traceparent: str
    ) -> list[SendResult]:
        if self._closed and not self._mailer:
            return [SendResult(None, NotBegun(CLOSED_REASON)) for _ in mails]
        mailer = self._started()
        batch = Batch[asyncio.Future[Found]](mails, mailer.loop.create_future, traceparent)
        begun: deque[Parcel[asyncio.Future[Found]]] = deque()

        async def note() -> None:
            parcel = begun[0]
            batch.note(parcel, await parcel.future)
            begun.popleft()

        try:
            try:
                for parcel in batch.parcels():
                    if parcel:
                        mailer.put(parcel)
                        begun.append(parcel)
                        if len(begun) > self._connections:
                            await note()
                    await asyncio.sleep(0)
            except Exception as error:
                while begun:
                    await note()
                batch.broke_off(error)
                raise
            while begun:
                await note()
        finally:
            # nobody waits for these, because the task of the caller is cancelled
            for parcel in begun:
                parcel.future.cancel()
        return batch.results()

    async def status(self, ids: Iterable[int]) -> dict[int, list[RecipientStatus]]:
        """Return the recipients of each message; none for an id that is not of this login.

        Raises StoreUnavailable, psycopg.Error.
        """
        return await self._started().status(ids)

    async def wait(
        self, ids: Iterable[int], timeout: float | None = None
    ) -> dict[int, list[RecipientStatus]]:
        """Wait until all messages are over, and return the same as `status`.

        A message is over if each recipient is (`RecipientStatus.over`). Mail on hold is over too,
        because it waits for an operator. At the `timeout`, in seconds, and at `close` the states of
        the last look are returned. Raises StoreUnavailable, psycopg.Error.
        """
        return await self._started().wait(ids, timeout)

    async def cancel(self, id: int, reason: str | None = None) -> int:
        """Stop the recipients of a message that are not delivered yet; return their number.

        Raises SubmissionError if this login has no such message, or for a bad reason. Raises
        StoreUnavailable, Undecided and psycopg.Error.
        """
        return await self._started().cancel(id, reason)

    async def close(self) -> None:
        """End the calls that were begun, and the connections.

        The calls get their answers. Mail that was not begun gets NotBegun, as each later call does.
        """
        self._closed = True
        if self._mailer:
            await self._started().close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def _started(self) -> Mailer:
        mailer = self._mailer
        if mailer is None:
            if self._closed:
                raise NotBegun(CLOSED_REASON)
            mailer = self._mailer = Mailer(self._uri, self._connections, self._patience)
        elif mailer.loop is not asyncio.get_running_loop():
            raise RuntimeError(
                "this pgmta.Client belongs to another event loop: make one in each loop, or use "
                "pgmta.SyncClient"
            )
        return mailer


def check_arguments(uri: str, connections: int, patience: float) -> None:
    """Raise TypeError or ValueError for a bad argument of a client."""
    if not isinstance(uri, str):
        raise TypeError(f"uri: it has to be a text, and not {type(uri).__name__}")
    try:
        conninfo_to_dict(uri)
    except ProgrammingError:  # its message may have a password
        raise ValueError(
            "uri: it is no connection string of libpq, such as postgresql://app@db.example/mail"
        ) from None
    if not isinstance(connections, int) or connections < 1:
        raise ValueError(f"connections: give a number from 1 on, and not {connections!r}")
    if not isinstance(patience, int | float) or not 0 < patience <= _MAX_PATIENCE_S:
        raise ValueError(
            f"patience: give seconds from 0 to {_MAX_PATIENCE_S}, and not {patience!r}"
        )
