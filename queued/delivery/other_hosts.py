"""Further hosts of a destination, for mail that its first host does not take for now."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Protocol

from pgmta.config.types import HostPort
from pgmta.errors import DeliveryError, NoHostLeft
from pgmta.logs import get
from queued.delivery.connect.connector import DeliveryContext
from queued.delivery.failure import failed
from queued.delivery.smtp.classify import hung_up
from queued.delivery.smtp.commands import passes_dsn
from queued.delivery.smtp.session import Session
from queued.delivery.sorting import WITHOUT_DSN, after, sort
from queued.delivery.transport.destination import Destination
from queued.delivery.transport.envelope import Envelope
from queued.delivery.transport.result import CUT_OFF, Result

log = get("delivery")


class EnvelopeParts(Protocol):
    """Splits and finishes the envelopes of a destination."""

    def part(self, envelope: Envelope, places: list[int]) -> Envelope:
        """Move the items with these places into a new envelope, which is under way as well."""

    def finish(self, envelope: Envelope, results: list[Result]) -> None:
        """Report the results of an envelope that was under way."""


class _Attempt:
    """The recipients of an envelope for which further hosts are tried.

    `last` has the last result of each, `said` what the hosts before said.
    """

    def __init__(self, envelopes: EnvelopeParts, envelope: Envelope, results: list[Result]) -> None:
        self._envelopes = envelopes
        self.envelope: Envelope | None = envelope
        self.last = list(results)
        self.said: list[list[str]] = [[] for _ in results]
        self.tried: frozenset[HostPort] = frozenset()

    def settle(self, left: list[int]) -> None:
        """Finish the recipients but those at these places."""
        if self.envelope and len(left) < len(self.last):
            rest = self._envelopes.part(self.envelope, left) if left else None
            kept = set(left)
            pairs = zip(self.last, self.said, strict=True)
            results = [after(*pair) for n, pair in enumerate(pairs) if n not in kept]
            self._envelopes.finish(self.envelope, results)
            self.envelope = rest
            self.last = [self.last[n] for n in left]
            self.said = [self.said[n] for n in left]

    def note(self, words: str = "") -> None:
        """Keep the last replies, which the next ones replace, or else these words."""
        for result, said in zip(self.last, self.said, strict=True):
            said.append(words or f"{result.host} {result.reply}")


class OtherHosts:
    """Sends to further hosts, one after the other, over sessions that it keeps for a while.

    `sessions` has every session of the destination, so that all can be dropped.
    """

    def __init__(
        self,
        destination: Destination,
        context: DeliveryContext,
        sessions: set[Session],
        envelopes: EnvelopeParts,
    ) -> None:
        self.context = context
        self.ending = False
        """Whether nothing new may begin."""
        self._destination = destination
        self._sessions = sessions
        self._envelopes = envelopes
        self._idle: dict[Session, asyncio.TimerHandle] = {}

    async def try_all(
        self, first: Session, envelope: Envelope, results: list[Result], elsewhere: list[int]
    ) -> None:
        """Send to the recipients at these places what `first` did not take, and finish all.

        A result that may pass counts only after the last host (RFC 5321, section 5.1). The results
        of the other recipients count at once.
        """
        attempt = _Attempt(self._envelopes, envelope, results)
        attempt.tried = frozenset((first.host.place,))
        try:
            attempt.settle(elsewhere)
            while attempt.envelope and not self.ending and len(attempt.tried) < self._most:
                session = await self._open(attempt)
                if session is None:
                    break
                await self._send(session, attempt)
        finally:
            attempt.settle([])

    @property
    def _most(self) -> int:
        """The number of hosts that are tried for one envelope."""
        return self.context.delivery.hosts

    async def _open(self, attempt: _Attempt) -> Session | None:
        """Return a session with a host that was not tried; None if there is none."""
        for session, timer in list(self._idle.items()):
            if session.connection.closed:
                self._end(session)
            elif session.host.place not in attempt.tried:
                timer.cancel()
                del self._idle[session]
                return session
        opener = self.context.opener
        earlier = attempt.envelope.earlier if attempt.envelope else 0
        try:
            return await opener.open(self._destination, self._sessions, attempt.tried, earlier)
        except NoHostLeft:
            return None
        except DeliveryError as error:
            attempt.note(error.line)
        except Exception as error:
            log.error("can't connect", destination=str(self._destination), exc_info=error)
        return None

    async def _send(self, session: Session, attempt: _Attempt) -> None:
        """Send to all that are left, in as many transactions as the host needs."""
        envelope = attempt.envelope
        assert envelope  # noqa: S101 - for the type checker
        connection = session.connection
        kept = session.transactions > 0
        waiting = list(range(len(envelope.items)))
        elsewhere: list[int] = []
        places: list[int] = []
        noted, bare = False, envelope.bare
        try:
            while waiting and not session.connection.closed:
                most = session.most_recipients
                places, waiting = waiting[:most], waiting[most:]
                items = [envelope.items[place] for place in places]
                part = replace(envelope, items=items, bare=bare)
                try:
                    results = await session.send(part)
                    vain = connection.closed and hung_up(results)
                except Exception as error:
                    results, vain = failed(error, session, part)
                if kept and vain:
                    return  # a kept connection was closed: this host is not tried yet
                kept = False
                if not noted:
                    attempt.note()
                    noted = True
                results = session.note(results)
                passed = part.dsn and passes_dsn(part, session.extensions)
                found = sort(results, part if passed else None)
                if found.bare:
                    session.remark(WITHOUT_DSN)
                    bare = True
                for number, result in enumerate(results):
                    if number not in found.later:
                        attempt.last[places[number]] = result
                elsewhere += [places[n] for n in found.elsewhere]
                waiting[:0] = [places[n] for n in found.later]
                places = []
        except BaseException:
            if connection.past_dot:
                for place in places:
                    attempt.last[place] = CUT_OFF
            connection.abort()
            raise
        finally:
            self._keep(session)
        attempt.tried |= {session.host.place}
        attempt.settle(sorted(elsewhere + waiting))

    def _keep(self, session: Session) -> None:
        """Keep the session for the next envelope, for `delivery.idle` seconds."""
        delivery = self.context.delivery
        over = session.transactions >= session.most(delivery)
        if self.ending or session.connection.closed or over:
            self._end(session)
        else:
            loop = asyncio.get_running_loop()
            self._idle[session] = loop.call_later(delivery.idle, self._end, session)

    def _end(self, session: Session) -> None:
        if timer := self._idle.pop(session, None):
            timer.cancel()
        session.connection.quit()
        self._sessions.discard(session)

    def end(self) -> None:
        """Begin nothing new."""
        self.ending = True
        self.end_idle()

    def end_idle(self) -> None:
        """End the sessions that are idle."""
        for session in list(self._idle):
            self._end(session)
