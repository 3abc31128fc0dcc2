"""SyncClient: the client for threads, with its own event loop in a thread."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from concurrent import futures
from contextlib import suppress
from types import TracebackType
from typing import Any, Self
from weakref import WeakSet

from pgmta.client.client import check_arguments
from pgmta.client.mail_json import mail_json
from pgmta.client.mailer import Mailer, message_ids
from pgmta.client.parcels import CLOSED_REASON, Batch, Found, Parcel
from pgmta.client.results import RecipientStatus, SendResult
from pgmta.compose.submitted_mail import SubmittedMail
from pgmta.errors import NotBegun
from pgmta.tracing import submit_span

_clients: WeakSet[SyncClient] = WeakSet()
_abandoned: list[
    object
] = []  # objects of the parent of this process, which are not to be closed here


class SyncClient:
    """The same as Client for programs with threads: each method waits for its answer.

    Calls of many threads share commits. The first call starts a thread with an event loop. In the
    child of a fork the first call starts another one. So a server may make the client before it
    forks.
    """

    def __init__(self, uri: str, *, connections: int = 2, patience: float = 30.0) -> None:
        check_arguments(uri, connections, patience)
        self._uri, self._connections, self._patience = uri, connections, patience
        self._closed = False
        self._begin()
        _clients.add(self)

    def _begin(self) -> None:
        self._lock = threading.RLock()  # a signal handler may call `close` while its thread has it
        self._mailer: Mailer | None = None
        self._thread: threading.Thread | None = None

    def leave_to_parent(self) -> None:
        """Begin again in the child of a fork: loop, thread and connections are the parent's."""
        # whose connections the parent of this process still uses
        _abandoned.append((self._mailer, self._thread))
        self._begin()

    def send(self, mail: SubmittedMail) -> int:
        """Store mail and return its message id, as `Client.send` does; same errors."""
        with submit_span() as span:
            made = mail_json(mail, span.traceparent)
            future: futures.Future[Found] = futures.Future()
            self._put(Parcel([made], made.size, future))
            [found] = _result(future)
            if isinstance(found, Exception):
                raise found
            return span.sent(found)

    def send_many(self, mails: Iterable[SubmittedMail]) -> list[SendResult]:
        """Store mails and return the id or the error of each, as `Client.send_many` does.

        An iterator is read in the thread of the caller.
        """
        with submit_span() as span:
            results = self._send_many(mails, span.traceparent)
            span.sent_many(result.error for result in results)
            return results

    def _send_many(self, mails: Iterable[SubmittedMail], traceparent: str) -> list[SendResult]:
        batch = Batch[futures.Future[Found]](mails, futures.Future, traceparent)
        begun: deque[Parcel[futures.Future[Found]]] = deque()

        def note() -> None:
            parcel = begun[0]
            batch.note(parcel, _result(parcel.future))
            begun.popleft()

        try:
            try:
                for parcel in batch.parcels():
                    if parcel:
                        self._put(parcel)
                        begun.append(parcel)
                        if len(begun) > self._connections:
                            note()
            except Exception as error:
                while begun:
                    note()
                batch.broke_off(error)
                raise
            while begun:
                note()
        finally:
            for parcel in begun:  # an exception such as KeyboardInterrupt
                parcel.future.cancel()
        return batch.results()

    def status(self, ids: Iterable[int]) -> dict[int, list[RecipientStatus]]:
        """Return the recipients of each message, as `Client.status` does."""
        wanted = message_ids(ids)
        return self._call(lambda mailer: mailer.status(wanted))

    def wait(
        self, ids: Iterable[int], timeout: float | None = None
    ) -> dict[int, list[RecipientStatus]]:
        """Wait until all messages are over, as `Client.wait` does."""
        wanted = message_ids(ids)
        return self._call(lambda mailer: mailer.wait(wanted, timeout))

    def cancel(self, id: int, reason: str | None = None) -> int:
        """Stop the recipients of a message, as `Client.cancel` does."""
        return self._call(lambda mailer: mailer.cancel(id, reason))

    def close(self) -> None:
        """End the calls that were begun, the connections and the thread, as `Client.close` does."""
        with self._lock:
            self._closed = True
            mailer, self._mailer = self._mailer, None
            thread, self._thread = self._thread, None
        if mailer and thread:
            asyncio.run_coroutine_threadsafe(mailer.close(), mailer.loop).result()
            mailer.loop.call_soon_threadsafe(mailer.loop.stop)
            thread.join()
            mailer.loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _put(self, parcel: Parcel[futures.Future[Found]]) -> None:
        with self._lock:  # `close` comes after this call, or has refused it
            mailer = self._started()
            if mailer:
                with suppress(RuntimeError):  # a signal handler has closed it right now
                    mailer.loop.call_soon_threadsafe(mailer.put, parcel)
                    return
        parcel.fail(NotBegun(CLOSED_REASON))

    def _call[T](self, make: Callable[[Mailer], Coroutine[Any, Any, T]]) -> T:
        with self._lock:
            mailer = self._started()
            if not mailer:
                raise NotBegun(CLOSED_REASON)
            future = asyncio.run_coroutine_threadsafe(make(mailer), mailer.loop)
        return _result(future)

    def _started(self) -> Mailer | None:
        if not (self._mailer or self._closed):
            loop = asyncio.new_event_loop()
            thread = threading.Thread(target=loop.run_forever, name="pgmta client", daemon=True)
            thread.start()

            async def make() -> Mailer:
                return Mailer(self._uri, self._connections, self._patience)

            self._mailer = asyncio.run_coroutine_threadsafe(make(), loop).result()
            self._thread = thread
        return self._mailer


def _result[T](future: futures.Future[T]) -> T:
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def _after_fork() -> None:
    for client in _clients:
        client.leave_to_parent()


os.register_at_fork(after_in_child=_after_fork)
