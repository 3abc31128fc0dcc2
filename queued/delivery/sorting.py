"""Which results of a transaction count, and which recipients are tried again at once (pure)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from pgmta.errors import Stage
from pgmta.model import Reply
from pgmta.states import Event
from queued.delivery.reply import Result, event_of, stored

_HOST = (Stage.EHLO, Stage.MAIL, Stage.RCPT, Stage.DATA, Stage.END_OF_DATA, Stage.RSET)
"""Stages of failures that another host may not have; the others are failures of pgmta."""

_TOO_MANY = {452: ("", "4.5.3"), 552: ("", "4.5.3", "5.5.3")}
"""Replies to RCPT for too many recipients, with their enhanced codes (RFC 5321, 4.5.3.1.10)."""

_SAID = 400  # characters of what earlier hosts said that are kept


@dataclass(slots=True)
class Sorted:
    """Places of recipients in an envelope."""

    settled: list[int] = field(default_factory=list)
    """Their results count."""
    later: list[int] = field(default_factory=list)
    """They were too many for one transaction, and so no attempt was made."""
    elsewhere: list[int] = field(default_factory=list)
    """Another host of the destination may take the message for them (RFC 5321, section 5.1)."""


def sort(results: list[Result]) -> Sorted:
    """Sort the recipients of a transaction by their results.

    Recipients are `later` only after one that was accepted and whose result counts. So each
    transaction has fewer of them than the one before.
    """
    found = Sorted()
    taken = False
    for place, result in enumerate(results):
        event = event_of(result)
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


def after(result: Result, said: list[str]) -> Result:
    """Return the result with what other hosts said to the recipient."""
    if not said:
        return result
    note = "; ".join(said)
    note = f" (other hosts: {note if len(note) <= _SAID else note[: _SAID - 3] + '...'})"
    note = note.encode("ascii", "replace").decode()  # `stored` counts its characters as octets
    return replace(result, reply=Reply(result.reply.code, stored(result.reply.text, note)))
