"""The meaning of a server's replies (RFC 5321, section 4.2.1; pure)."""

from __future__ import annotations

from pgmta.errors import Stage
from pgmta.model import Reply
from pgmta.states import Event
from queued.delivery.transport.result import Result

_OK, _FAILED = 2, 5  # first digits of a positive reply, and of a negative one for good

_ABOUT_THE_MAIL = (Stage.MAIL, Stage.RCPT, Stage.DATA, Stage.END_OF_DATA)
"""Stages in which a 5xx concerns this mail; before them it concerns the host, and may pass."""

_ABOUT_THE_SESSION = (500, 501, 502, 503, 504, 530, 538)
"""Codes for commands that the host does not take in this order, without TLS, or without a login."""


def event_of(reply: Reply, stage: Stage) -> Event:
    """Return the event of a reply.

    Only 2xx to the end of data is a delivery. After the final dot any reply but 2xx, 4xx and 5xx
    leaves open whether the server has the message. Before it, any reply but 5xx is a failure for
    now: a server that breaks the protocol gets another chance. So does one that refuses the session
    and not the mail: that is said of an address only by the enhanced codes 5.1.x.
    """
    code = reply.code
    first = code // 100
    if stage is Stage.END_OF_DATA and first not in (4, _FAILED):
        return Event.DELIVERED if first == _OK else Event.UNKNOWN
    if first == _FAILED and stage in _ABOUT_THE_MAIL:
        passes = code in _ABOUT_THE_SESSION and not reply.text.startswith("5.1.")
        passes = passes or (code == 552 and reply.enhanced == "5.5.3")
        return Event.DEFER if passes else Event.FAIL
    return Event.DEFER


def result_of(reply: Reply, host: str, stage: Stage) -> Result:
    """Return the result of a reply of this host."""
    return Result(event_of(reply, stage), reply, host, stage)


def hung_up(results: list[Result]) -> bool:
    """Return whether the server closed before it had the message (RFC 5321, section 3.8)."""
    return any(
        result.reply.code == 421 and result.stage is not Stage.END_OF_DATA for result in results
    )
