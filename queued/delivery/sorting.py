"""Which results of a transaction count, and which recipients are tried again at once (pure)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from pgmta.errors import Stage
from pgmta.model import Reply
from pgmta.states import Event
from queued.delivery.transport.envelope import Envelope
from queued.delivery.transport.result import Result, stored

_FAILED = 5  # first digit of a negative reply for good

_HOST = (Stage.EHLO, Stage.MAIL, Stage.RCPT, Stage.DATA, Stage.END_OF_DATA, Stage.RSET)
"""Stages of failures that another host may not have; the others are failures of pgmta."""

_TOO_MANY = {452: ("", "4.5.3"), 552: ("", "4.5.3", "5.5.3")}
"""Replies to RCPT for too many recipients, with their enhanced codes (RFC 5321, 4.5.3.1.10)."""

_PARAMETERS = (500, 501, 504, 555)
"""Codes for parameters that a host does not take (RFC 5321, section 4.2.4), or a line too long."""

WITHOUT_DSN = "DSN parameters refused: once more without them"
"""The note in the dialogue before such a transaction."""

_SAID = 400  # characters of what earlier hosts said that are kept


@dataclass(slots=True)
class Sorted:
    """Places of recipients in an envelope."""

    settled: list[int] = field(default_factory=list)
    """Their results count."""
    later: list[int] = field(default_factory=list)
    """No attempt was made: they were too many for one transaction, or are `bare`."""
    bare: bool = False
    """Whether the host refused DSN parameters: the `later` ones go without them."""
    elsewhere: list[int] = field(default_factory=list)
    """Another host of the destination may take the message for them (RFC 5321, section 5.1)."""


def sort(results: list[Result], asked: Envelope | None = None) -> Sorted:
    """Sort the recipients of a transaction by their results.

    `asked` is the envelope if the host got its DSN parameters. Recipients are `later` only after
    one that was accepted and whose result counts, or because of these parameters. So each
    transaction has fewer of them than the one before, or no parameters.
    """
    found = Sorted()
    taken = False
    for place, result in enumerate(results):
        if asked and _refuses_parameters(result, asked, place):
            found.later.append(place)
            found.bare = True
            continue
        event = result.event
        accepted = result.stage in (Stage.DATA, Stage.END_OF_DATA)
        if taken and result.stage is Stage.RCPT and _too_many(result.reply):
            found.later.append(place)
        elif result.stage in _HOST and (
            event is Event.DEFER or (event is Event.FAIL and result.stage is Stage.EHLO)
        ):
            found.elsewhere.append(place)
        else:
            taken = taken or (accepted and event is not Event.UNKNOWN)
            found.settled.append(place)
    return found


def _too_many(reply: Reply) -> bool:
    return reply.enhanced in _TOO_MANY.get(reply.code, ())


def _refuses_parameters(result: Result, envelope: Envelope, place: int) -> bool:
    item, reply = envelope.items[place], result.reply
    given = {
        Stage.MAIL: envelope.ret or envelope.envid,
        Stage.RCPT: item.notify or item.orcpt,
    }
    if not given.get(result.stage) or reply.text.startswith("5.1."):
        return False
    return reply.code in _PARAMETERS or (reply.code // 100 == _FAILED and reply.enhanced == "5.5.4")


def after(result: Result, said: list[str]) -> Result:
    """Return the result with what other hosts said to the recipient."""
    if not said:
        return result
    note = "; ".join(said)
    note = f" (other hosts: {note if len(note) <= _SAID else note[: _SAID - 3] + '...'})"
    note = note.encode("ascii", "replace").decode()  # `stored` counts its characters as octets
    return replace(result, reply=Reply(result.reply.code, stored(result.reply.text, note)))
