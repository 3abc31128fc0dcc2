"""Group commit of a program's mail: while one commit is under way, calls gather for the next."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import repeat
from typing import Any, Final, Protocol
from uuid import UUID, uuid4

import psycopg
from psycopg import errors as pg_errors

from pgmta.client.mail_json import as_array
from pgmta.client.parcels import CLOSED_REASON, Parcel
from pgmta.errors import LoginRefused, NotBegun, SchemaMismatch, StoreUnavailable, Undecided
from pgmta.postgres import faults
from pgmta.postgres.link import Link
from pgmta.postgres.notify import Notifier
from pgmta.postgres.resources import Resources
from pgmta.postgres.role import ROLE_QUESTION, lacking
from pgmta.store.changes.sql_interface import SqlInterface

_MAX_GROUP_OCTETS = 16 << 20  # if a group has several parcels
_LOCK_TIMEOUT_MS = 1000  # of a call, with all mail of its group
_LOCKED_PAUSE_S = 2.0  # before mail that was locked out alone is tried again
_BEHIND: Final = "PostgreSQL took too long for the mail before it"
_LOCKED: Final = "another transaction that is open locks the mail out, for example by its key"
_GRACE_S = 1.0  # in which PostgreSQL ends a late statement itself, before the client does


class Door[M, W](Protocol):
    """The function of the database that takes a group of mails."""

    role: str
    """The role that may call it."""
    max_mails: int
    """Mails of a group of several parcels."""

    def write(self, mails: Iterable[M]) -> W:
        """Return what the call takes for these mails."""

    async def submit(self, link: Link, written: W, call: UUID, *, again: bool) -> Sequence[Any]:
        """Make the call; return the answer of each mail.

        With `again` the answer to the same call was lost: it has to get the answer of the first.
        Raises StoreUnavailable, AnswerLost, psycopg.Error.
        """


class SubmitMails:
    """submit_mails(), which programs may call."""

    role = "pgmta_submit"
    max_mails = 1000

    def write(self, mails: Iterable[Any]) -> tuple[str, list[bytes]]:
        """Return the mails as JSON, and the octets beside it."""
        return as_array(mails)

    async def submit(
        self, link: Link, written: tuple[str, list[bytes]], call: UUID, *, again: bool
    ) -> Sequence[Any]:
        """Return the id of each mail, or why it is refused."""
        return await SqlInterface(link).submit(*written, call)


class Gatherer:
    """Commits the mail of all callers of one client in groups, over a few connections.

    A free connection takes all mail that waits, so a lone mail goes at once. `name` is that of its
    connections.
    """

    def __init__(
        self,
        resources: Resources,
        connections: int,
        patience: float,
        door: Door[Any, Any] | None = None,
        name: str = "mails",
    ) -> None:
        self._patience = patience
        self._door = door or SubmitMails()
        self._notifier = Notifier(resources)
        session = session_of(patience)
        self._links = [resources.link(f"{name} {n}", session) for n in range(connections)]
        self._waiting: deque[Parcel[Any]] = deque()
        # parcels that wait for a lock of another transaction
        self._locked: set[Parcel[Any]] = set()
        # one of each idle task; the last one was busy last
        self._idle: list[asyncio.Future[None]] = []
        self._roused = False  # whether a task is about to take what waits
        self._closing = False
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to commit."""
        self._notifier.start()
        self._tasks = [asyncio.create_task(self._run(link)) for link in self._links]

    def put(self, parcel: Parcel[Any]) -> None:
        """Take mail; its future gets the results. After `close` each of them is NotBegun."""
        if self._closing:
            parcel.fail(NotBegun(CLOSED_REASON))
        else:
            self._waiting.append(parcel)
            self._rouse()

    async def close(self) -> None:
        """End the groups that were begun; mail that waits gets NotBegun."""
        self._end()
        for idle in self._idle:
            if not idle.done():
                idle.set_result(None)
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._notifier.close()

    def _end(self) -> None:
        self._closing = True
        for parcel in (*self._waiting, *self._locked):
            parcel.fail(NotBegun(CLOSED_REASON))
        self._waiting.clear()

    async def _run(self, link: Link) -> None:
        loop = asyncio.get_running_loop()
        group: list[Parcel[Any]] = []
        try:
            while True:
                if group := self._take():
                    self._rouse()
                    await self._write(link, group)
                elif self._closing:
                    return
                else:
                    self._idle.append(idle := loop.create_future())
                    await idle
                    self._roused = False
        except BaseException:  # the program cancels all tasks of its loop
            for parcel in group:
                parcel.fail(Undecided("the event loop ends, and the mail was on its way"))
            self._end()
            raise

    def _rouse(self) -> None:
        """Wake one idle task for all that waits: its connection was used last."""
        if self._waiting and self._idle and not self._roused:
            self._roused = True
            self._idle.pop().set_result(None)

    def _take(self) -> list[Parcel[Any]]:
        group: list[Parcel[Any]] = []
        waiting = self._waiting
        mails = octets = 0
        most = self._door.max_mails
        overdue = time.monotonic() - self._patience
        while waiting:
            parcel = waiting[0]
            mails += len(parcel.mails)
            octets += parcel.octets
            if group and (parcel.alone or mails > most or octets > _MAX_GROUP_OCTETS):
                break
            waiting.popleft()
            if parcel.since < overdue:
                parcel.fail(StoreUnavailable(_LOCKED if parcel.alone else _BEHIND))
            elif not parcel.future.done():  # not if the caller of the parcel has gone
                group.append(parcel)
                if parcel.alone:
                    break
        return group

    def _put_back(self, group: list[Parcel[Any]]) -> None:
        """Let mail wait that another transaction has locked out, by its key for example.

        First each parcel is tried alone, so that it delays no other. Then it is tried at times.
        """
        for parcel in reversed(group):
            if not parcel.alone:
                parcel.alone = True
                self._waiting.appendleft(parcel)
            elif self._closing:
                parcel.fail(StoreUnavailable(_LOCKED))
            else:
                self._locked.add(parcel)
                left = max(parcel.since + self._patience - time.monotonic(), 0.0)
                pause = min(_LOCKED_PAUSE_S, left)
                asyncio.get_running_loop().call_later(pause, self._try_again, parcel)

    def _try_again(self, parcel: Parcel[Any]) -> None:
        self._locked.discard(parcel)
        if not parcel.future.done():
            self._waiting.append(parcel)
            self._rouse()

    async def _write(self, link: Link, group: list[Parcel[Any]]) -> None:
        """Answer each parcel of the group: when it is committed, refused, or its time is over.

        After a lost answer the same call is repeated: PostgreSQL answers as it did to the first.
        """
        open_, breaks, call, written = False, pauses(), uuid4(), None
        while waiting := [parcel for parcel in group if not parcel.future.done()]:
            if not open_:  # nothing is on its way: mail without a caller stays out
                group = waiting
                call, written = uuid4(), self._door.write(m for p in group for m in p.mails)
            try:
                answers = await self._attempt(link, waiting, written, call, open_=open_)
            except StoreUnavailable as error:
                open_ = open_ or isinstance(error, Undecided)
                self._give_up(group, error, Undecided if open_ else type(error))
                if all(parcel.future.done() for parcel in waiting):
                    return
                await asyncio.sleep(next(breaks))
            except Exception as error:
                if faults.locked(error):
                    self._put_back(waiting)
                    return
                one = sum(len(parcel.mails) for parcel in group) == 1
                if isinstance(error, psycopg.Error) and faults.about_row(error) and not one:
                    await self._write_singly(link, waiting)
                    return
                reason = await explained(link, error, self._door.role)
                if open_ and not faults.about_row(error):  # the first call may be in the queue
                    reason = Undecided(str(reason))
                for parcel in group:
                    parcel.fail(reason)
            else:
                self._notifier.due.set()
                start = 0
                for parcel in group:
                    parcel.answer(answers[start : (start := start + len(parcel.mails))])
                return

    async def _attempt(
        self, link: Link, waiting: list[Parcel[Any]], written: Any, call: UUID, *, open_: bool
    ) -> Sequence[Any]:
        """Make the call once; `open_` if it was made before, and its answer was lost.

        If it has no answer when a parcel's time is over, it raises Undecided. It raises
        StoreUnavailable if the call was never sent by then.
        """
        until = min(parcel.since for parcel in waiting) + self._patience + _GRACE_S
        error = (Undecided if open_ else StoreUnavailable)("PostgreSQL has not answered in time")
        loop = asyncio.get_running_loop()
        # the callers first: it may take seconds until the statement is cancelled
        late = loop.call_at(until, lambda: self._give_up(waiting, error, type(error)))
        try:
            async with asyncio.timeout_at(until):
                if not link.connected:
                    async with link.use():
                        pass
                error = Undecided(str(error))
                return await self._door.submit(link, written, call, again=open_)
        except TimeoutError:
            raise error from None
        except pg_errors.LockNotAvailable as failure:
            if open_:  # the first call is still at work
                raise StoreUnavailable(str(failure)) from None
            raise
        finally:
            late.cancel()

    async def _write_singly(self, link: Link, group: list[Parcel[Any]]) -> None:
        """Write each mail by itself: a trigger or constraint of operators refuses one of them."""
        for parcel in group:
            answers: list[int | Exception] = []
            for mail in parcel.mails:
                alone = Parcel([mail], mail.size, asyncio.get_running_loop().create_future())
                alone.since = parcel.since
                await self._write(link, [alone])
                answers += await alone.future
            parcel.answer(answers)

    def _give_up(
        self, group: list[Parcel[Any]], error: StoreUnavailable, kind: type[StoreUnavailable]
    ) -> None:
        """Answer mail whose time is over, also such that waits for the end of the outage."""
        overdue = time.monotonic() - self._patience
        for parcel in group:
            if parcel.since <= overdue or kind is LoginRefused:
                parcel.fail(kind(str(error)))
        for parcel in self._waiting:
            if parcel.since <= overdue:
                parcel.fail(StoreUnavailable(str(error)))


def pauses() -> Iterator[float]:
    """Yield the seconds before each repetition of a call: none, 50 ms, and more up to 1 s."""
    yield 0.0
    for doublings in range(5):
        yield 0.05 * 2**doublings
    yield from repeat(1.0)


def session_of(patience: float) -> dict[str, str]:
    """Return the run-time parameters of a client's connections.

    PostgreSQL ends a statement that takes longer than the caller waits, and nothing of it stays.
    """
    limit = max(1, min(round(patience * 1000), 2**31 - 1))
    return {
        "jit": "off", "plan_cache_mode": "force_generic_plan", "client_encoding": "UTF8",
        "statement_timeout": f"{limit}ms", "lock_timeout": f"{_LOCK_TIMEOUT_MS}ms",
    }  # fmt: skip


async def explained(link: Link, error: Exception, role: str = SubmitMails.role) -> Exception:
    """Return the error of a database that has no such function, or of a login without its role."""
    if isinstance(error, pg_errors.UndefinedFunction | pg_errors.InvalidSchemaName):
        return SchemaMismatch(
            f"the database lacks what this version calls: run `queuectl database migrate` ({error})"
        )
    if isinstance(error, pg_errors.InsufficientPrivilege):
        with suppress(StoreUnavailable, psycopg.Error):
            for answer in await link.run(ROLE_QUESTION, {"role": role}):
                if words := lacking(role, answer):
                    return LoginRefused(words)
    return error
