"""The result of an attempt for one recipient (pure)."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from pgmta.errors import DeliveryError, Stage
from pgmta.mail.text import printable
from pgmta.model import Reply
from pgmta.states import Event
from queued.delivery.transport.destination import Destination
from queued.delivery.transport.envelope import Envelope
from queued.delivery.transport.facts import ConnectionFacts
from queued.delivery.transport.transcript import Said

SHORT = 512
"""Characters of printable ASCII that can be kept as they are, with any note."""

_OK = 2  # first digit of a positive reply
_ABOUT_THE_MAIL = (Stage.MAIL, Stage.RCPT, Stage.DATA, Stage.END_OF_DATA)
"""Stages in which a 5xx concerns this mail; before them it concerns the host, and may pass."""

_ABOUT_THE_SESSION = (500, 501, 502, 503, 504, 530, 538)
"""Codes for commands that the host does not take in this order, without TLS, or without a login."""

_STORED = 1020  # octets of a reply's text that are kept: 1 KB with the code before it


def stored(text: str, note: str = "") -> str:
    """Return the text as it is kept: one printable line.

    It has at most 1,020 octets of UTF-8, whole characters, the note at its end included.
    """
    octets = _STORED - len(note)
    text = printable(text[:octets].replace("\n", " "))
    if len(text) * 4 > octets:
        text = text.encode()[:octets].decode("utf-8", "ignore")
    return text + note


@dataclass(slots=True)
class Result:
    """The reply of a next hop for one recipient, or the reason why the recipient was not tried.

    A row that may not go before `until` has not begun.
    After a transaction the session adds facts, seconds and dialogue, see `Session.note`.
    """

    reply: Reply
    host: str = ""
    stage: Stage = Stage.NONE
    permanent: bool = False
    unknown: bool = False
    begun: bool = True
    until: datetime | None = None
    facts: ConnectionFacts | None = field(default=None, compare=False)
    seconds: float = 0.0  # of the transaction
    said: Said | None = field(default=None, compare=False)

    @classmethod
    def of(cls, error: DeliveryError, host: str) -> Result:
        """Return the result for every recipient of a dialogue that failed as a whole."""
        result = cls(
            Reply(error.code, error.line),
            host or error.host,
            error.stage,
            error.permanent,
            error.unknown,
        )
        if isinstance(error.facts, ConnectionFacts):  # no transaction began
            result.facts = error.facts
            result.said = error.facts.dialogue, ()
        return result


CUT_OFF = Result(Reply(0, "interrupted after the final dot"), stage=Stage.END_OF_DATA, unknown=True)
"""The result of an attempt that queued ended itself after the final dot and before its reply."""

NOT_BEGUN = Result(Reply(0, ""), begun=False)
"""The result of an attempt that ended before it could have any effect."""

DEADLINE_OVER = Result(Reply(0, "4.4.7 the deadline of the message is over"), permanent=True)
"""The result of a row whose deadline was over before an attempt began (RFC 3463, section 3.5)."""


def event_of(result: Result) -> Event:
    """Return the event of a result (RFC 5321, section 4.2.1).

    Only 2xx to the end of data is a delivery. After the final dot any reply but 2xx, 4xx and 5xx
    leaves open whether the server has the message. Before it, any reply but 5xx is a failure for
    now: a server that breaks the protocol gets another chance. So does one that refuses the session
    and not the mail: that is said of an address only by the enhanced codes 5.1.x.
    """
    if not result.begun:
        return Event.POSTPONE if result.until else Event.HAND_BACK
    if result.unknown:
        return Event.UNKNOWN
    code = result.reply.code
    first = code // 100
    if result.stage is Stage.END_OF_DATA and first not in (4, 5):
        return Event.DELIVERED if first == _OK else Event.UNKNOWN
    if result.permanent:
        return Event.FAIL
    if first == 5 and result.stage in _ABOUT_THE_MAIL:
        passes = code in _ABOUT_THE_SESSION and not result.reply.text.startswith("5.1.")
        passes = passes or (code == 552 and result.reply.enhanced == "5.5.3")
        return Event.DEFER if passes else Event.FAIL
    return Event.DEFER


def postponed(until: datetime, reason: str) -> Result:
    """Return the result of a row that may not go before a time; `reason` is for operators."""
    return Result(Reply(0, reason), begun=False, until=until)


class Reporter(Protocol):
    """Takes what becomes of envelopes and destinations."""

    def report(self, envelope: Envelope, results: list[Result]) -> None:
        """Take the results of an envelope, one per item. It is called once per envelope."""

    def unreachable(self, destination: Destination, domains: set[str], result: Result) -> None:
        """Learn that no host could be connected to, for rows with these recipient domains.

        The envelopes that wait get this result afterwards.
        """

    def closed(self, destination: Destination) -> None:
        """Learn that the destination has neither mail nor connections left."""


def internal(error: Exception, *, unknown: bool = False) -> DeliveryError:
    """Return an error of this program as a failed attempt; `unknown`: the final dot was sent."""
    line = f"internal error: {type(error).__name__}: {error}"
    return DeliveryError(line, Stage.END_OF_DATA if unknown else Stage.NONE, unknown=unknown)


def hung_up(results: list[Result]) -> bool:
    """Return whether the server closed before it had the message (RFC 5321, section 3.8)."""
    return any(
        result.reply.code == 421 and result.stage is not Stage.END_OF_DATA for result in results
    )
