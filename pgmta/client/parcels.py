"""The mails of one call in parcels, which go to a group commit whole."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent import futures
from contextlib import suppress
from typing import Any, Final, Protocol

from pgmta.client.mail_json import MailJson, mail_json
from pgmta.client.results import SendResult, stored
from pgmta.compose.submitted_mail import SubmittedMail
from pgmta.errors import NotBegun, SubmissionError

MAX_PARCEL_MAILS: Final = 500
"""So many mails are one call of PostgreSQL at most."""

PARCEL_OCTETS: Final = 4 << 20
"""A parcel of several mails has about so many at most."""

CLOSED_REASON: Final = "the client is closed, so this call was not begun"

type Found = Sequence[int | Exception]
type Waiting = asyncio.Future[Found] | futures.Future[Found]
"""A future of the event loop, or one for which a thread waits."""


class Sized(Protocol):
    """What a parcel has, such as a MailJson."""

    @property
    def size(self) -> int:
        """Octets of it, about."""


class Parcel[F: Waiting]:
    """Mails, and the future that gets the id or the error of each.

    A parcel whose future is cancelled before it is begun is not sent. `since` is time.monotonic()
    of its making, and `places` are those of the mails in their call. It is `alone` in its commit
    after another transaction has locked it out.
    """

    __slots__ = ("alone", "future", "mails", "octets", "places", "since")

    def __init__(
        self, mails: Sequence[Sized], octets: int, future: F, places: Sequence[int] = (0,)
    ) -> None:
        self.mails = mails
        self.octets = octets
        self.future = future
        self.places = places
        self.since = time.monotonic()
        self.alone = False

    def answer(self, found: Found) -> None:
        """Answer the caller, unless it has gone or has its answer."""
        if not self.future.done():
            # raised if the thread of the caller cancels the future right now
            with suppress(futures.InvalidStateError):
                self.future.set_result(found)

    def fail(self, error: Exception) -> None:
        """Answer with one error for all mails."""
        self.answer([error] * len(self.mails))


class Batch[F: Waiting]:
    """The mails of `send_many`: parcels on the way in, results on the way out.

    `traceparent` is the trace context of the mails, or ''. Raises TypeError if `mails` is no
    iterable.
    """

    def __init__(
        self, mails: Iterable[SubmittedMail], future: Callable[[], F], traceparent: str
    ) -> None:
        if not isinstance(mails, Iterable):
            raise TypeError(f"mails: give a list of mails, and not {type(mails).__name__}")
        self._mails = mails
        self._future = future
        self._traceparent = traceparent
        self._closed = False
        self._results: list[Any] = []

    def parcels(self) -> Iterator[Parcel[F] | None]:
        """Yield the mails in parcels. Each None is a chance to let other tasks run.

        A bad mail gets its error at once. After the client was closed, each further mail gets
        NotBegun.
        """
        results = self._results
        mails: list[MailJson] = []
        places: list[int] = []
        octets = 0
        for mail in self._mails:
            if self._closed:
                results.append(SendResult(None, NotBegun(CLOSED_REASON)))
                if not len(results) % MAX_PARCEL_MAILS:
                    yield None
                continue
            try:
                made = mail_json(mail, self._traceparent)
            except (SubmissionError, TypeError, ValueError) as error:
                results.append(SendResult(None, error))
                continue
            if mails and octets + made.size > PARCEL_OCTETS:  # a large mail holds up no other
                yield Parcel(mails, octets, self._future(), places)
                mails, places, octets = [], [], 0
            places.append(len(results))
            results.append(None)
            mails.append(made)
            octets += made.size
            if len(mails) == MAX_PARCEL_MAILS or octets >= PARCEL_OCTETS:
                yield Parcel(mails, octets, self._future(), places)
                mails, places, octets = [], [], 0
        if mails:
            yield Parcel(mails, octets, self._future(), places)

    def note(self, parcel: Parcel[F], found: Found) -> None:
        """Note the results of a parcel."""
        results = self._results
        for place, each in zip(parcel.places, found, strict=True):
            if isinstance(each, int):
                results[place] = stored(each)
            else:
                results[place] = SendResult(None, each)
                self._closed = self._closed or isinstance(each, NotBegun)

    def results(self) -> list[SendResult]:
        """Return the result of each mail, in order, once all parcels are noted."""
        return self._results

    def broke_off(self, error: Exception) -> None:
        """Note in the error of the program's iterator how much mail is stored."""
        number = sum(1 for each in self._results if each and each.id is not None)
        error.add_note(f"pgmta: {number} mails that came before this are in the queue")
