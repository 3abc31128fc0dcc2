"""Further hosts of a destination, for mail that its first host does not take for now."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Protocol

from pgmta.errors import DeliveryError, NoHostLeft
from pgmta.logs import get
from queued.delivery.connect import DeliveryContext
from queued.delivery.envelope import Envelope
from queued.delivery.reply import CUT_OFF, Result, hung_up, internal
from queued.delivery.route import Destination
from queued.delivery.session import Session
from queued.delivery.sorting import after, sort

log = get("delivery")


class Envelopes(Protocol):
    """Splits and finishes the envelopes of a destination."""

    def part(self, envelope: Envelope, places: list[int]) -> Envelope:
        """Move the items with these places into a new envelope, which is under way as well."""

    def finish(self, envelope: Envelope, results: list[Result]) -> None:
        """Report the results of an envelope that was under way."""


class _Attempt:
    """The recipients of an envelope for which further hosts are tried.

    `last` has the last result of each, `said` what the hosts before said.
    """

    def __init__(self, envelopes: Envelopes, envelope: Envelope, results: list[Result]) -> None:
        self._envelopes = envelopes
        self.envelope: Envelope | None = envelope
        self.last = list(results)
        self.said: list[list[str]] = [[] for _ in results]
        self.tried: frozenset[str] = frozenset()

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
        envelopes: Envelopes,
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
        attempt.tried = frozenset((first.host.name,))
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
            elif session.host.name not in attempt.tried:
                timer.cancel()
                del self._idle[session]
                return session
        opener = self.context.opener
        try:
            return await opener.open(self._destination, self._sessions, attempt.tried)
        except NoHostLeft:
            return None
        except DeliveryError as error:
            attempt.note(f"other hosts: {error.line}")
        except Exception as error:
            log.error("can't connect", destination=str(self._destination), exc_info=error)
        return None

    async def _send(self, session: Session, attempt: _Attempt) -> None:
        """Send to all that are left, in as many transactions as the host needs."""
        envelope = attempt.envelope
        assert envelope  # noqa: S101 - for the type checker
        kept = session.transactions > 0
        waiting = list(range(len(envelope.items)))
        elsewhere: list[int] = []
        places: list[int] = []
        noted = False
        try:
            while waiting and not session.connection.closed:
                most = session.most_recipients
                places, waiting = waiting[:most], waiting[most:]
                part = replace(envelope, items=[envelope.items[place] for place in places])
                results, effect = await _transact(session, part)
                if kept and not effect:
                    return  # a kept connection was closed: this host is not tried yet
                kept = False
                if not noted:
                    attempt.note()
                    noted = True
                for place, result in zip(places, results, strict=True):
                    attempt.last[place] = result
                found = sort(results)
                elsewhere += [places[n] for n in found.elsewhere]
                waiting[:0] = [places[n] for n in found.later]
                places = []
        except BaseException:
            if session.connection.past_dot:
                for place in places:
                    attempt.last[place] = CUT_OFF
            session.connection.abort()
            raise
        finally:
            self._keep(session)
        attempt.tried |= {session.host.name}
        attempt.settle(sorted(elsewhere + waiting))

    def _keep(self, session: Session) -> None:
        """Keep the session for the next envelope, for `delivery.idle` seconds."""
        delivery = self.context.delivery
        most = min(delivery.transactions, session.most_transactions)
        if self.ending or session.connection.closed or session.transactions >= most:
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


async def _transact(session: Session, envelope: Envelope) -> tuple[list[Result], bool]:
    """Do one transaction; return its results, and whether it may have had any effect."""
    connection = session.connection
    try:
        results = await session.send(envelope)
        effect = not (connection.closed and any(hung_up(result) for result in results))
    except DeliveryError as error:
        effect = not (connection.closed and error.retry_elsewhere and not connection.violated)
        results = [Result.of(error, session.name)] * len(envelope.items)
    except Exception as error:
        results = [failed(error, session, envelope)] * len(envelope.items)
        effect = True
    return session.note(results), effect


def failed(error: Exception, session: Session, envelope: Envelope) -> Result:
    """Return the result of an attempt that an error of this program has ended, and log it."""
    log.error("delivery failed", destination=session.name, exc_info=error,
              message=envelope.items[0].message_id,
              rows=[item.id for item in envelope.items])  # fmt: skip
    session.connection.abort()
    return Result.of(internal(error, unknown=session.connection.past_dot), session.name)
