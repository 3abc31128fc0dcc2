"""The result of an attempt for one recipient (pure)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from pgmta.errors import DeliveryError, Stage
from pgmta.mail.text import printable
from pgmta.model import ReasonToWait, Reply
from pgmta.states import Event
from queued.delivery.transport.connection_facts import ConnectionFacts
from queued.delivery.transport.destination import Destination
from queued.delivery.transport.envelope import Envelope
from queued.delivery.transport.transcript import Said

MAX_SHORT_CHARACTERS = 512
"""A text of printable ASCII up to this length is kept as it is, with any note."""

_MAX_STORED_OCTETS = 1020  # of a reply's text: 1 KB with the code before it


def stored(text: str, note: str = "") -> str:
    """Return the text as it is kept: one printable line.

    It has at most 1,020 octets of UTF-8, whole characters, the note at its end included.
    """
    octets = _MAX_STORED_OCTETS - len(note)
    text = printable(text[:octets].replace("\n", " "))
    if len(text) * 4 > octets:
        text = text.encode()[:octets].decode("utf-8", "ignore")
    return text + note


class Again(Enum):
    """A result that does not count, because the recipient is tried again at once."""

    NEXT = "next"
    """No attempt was made: the recipient was too many for one transaction."""
    BARE = "bare"
    """No attempt was made: the host refuses options, and gets the recipient without them."""
    ELSEWHERE = "elsewhere"
    """Another host of the destination may take the message (RFC 5321, section 5.1)."""


@dataclass(slots=True)
class Result:
    """The result of an attempt for one recipient.

    The transport sets the `event`, and no other part reads its answers. `reply` is the answer of
    the next hop, or with the code 0 the reason why there is none. Facts, seconds and dialogue are
    those of the transaction, if one began. A `shared` reply was for several recipients at once.
    No attempt is wanted for `wait` seconds. A row with a `reason_to_wait` has not begun. With
    `hold` a failure is a hold, whatever `on_failed` of the row says.
    """

    event: Event
    reply: Reply
    host: str = ""
    stage: Stage = Stage.NONE
    again: Again | None = None
    facts: ConnectionFacts | None = field(default=None, compare=False)
    seconds: float = 0.0  # that the transaction took
    shared: bool = False
    said: Said | None = field(default=None, compare=False)
    wait: float | None = None
    hold: bool = False
    reason_to_wait: ReasonToWait | None = None

    @classmethod
    def from_error(cls, error: DeliveryError, host: str) -> Result:
        """Return the result for every recipient of a dialogue that failed as a whole."""
        event = Event.FAIL if error.permanent else Event.DEFER
        if error.unknown:
            event = Event.UNKNOWN
        reply = Reply(error.code, error.line)
        result = cls(event, reply, host or error.host, error.stage, hold=error.hold)
        if isinstance(error.facts, ConnectionFacts):  # the error came before a transaction began
            result.facts = error.facts
            result.said = error.facts.dialogue, ()
        return result


CUT_OFF = Result(
    Event.UNKNOWN, Reply(0, "interrupted after the final dot"), stage=Stage.END_OF_DATA
)
"""The result of an attempt that queued ended itself after the final dot and before its reply."""

NOT_BEGUN = Result(Event.HAND_BACK, Reply(0, ""))
"""The result of an attempt that ended before it could have any effect."""

DEADLINE_OVER = Result(Event.FAIL, Reply(0, "4.4.7 the deadline of the message is over"))
"""The result of a row whose deadline was over before an attempt began (RFC 3463, section 3.5)."""


def postponed(wait: float, reason: str) -> Result:
    """Return the result of a row that may not go for `wait` seconds; `reason` is for operators."""
    return Result(Event.POSTPONE, Reply(0, reason), wait=wait)


def gate_result(reason: ReasonToWait) -> Result:
    """Return the result of a row that the gate keeps back, for now or for good."""
    if reason.final:
        return Result(Event.SUPPRESS, Reply(0, reason.final))
    return Result(Event.POSTPONE, Reply(0, ""), reason_to_wait=reason)


def kept_too_long(reason: ReasonToWait) -> Result:
    """Return the result of a row that the gate keeps back beyond its age (RFC 3463, 3.5)."""
    return Result(
        Event.FAIL, Reply(0, f"4.4.7 undelivered for too long: such mail is {reason.kind}")
    )


class Reporter(Protocol):
    """Takes what becomes of envelopes and destinations."""

    def report(self, envelope: Envelope, results: list[Result]) -> None:
        """Take the results of an envelope, one per item. It is called once per envelope."""

    def dropped(self, envelope: Envelope) -> None:
        """Learn that an error has ended the way of an envelope, in place of its results."""

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
