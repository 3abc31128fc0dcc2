"""The phases of a connection, and which may follow which."""

from __future__ import annotations

from enum import Enum, StrEnum, auto


class Phase(StrEnum):
    """Says how a connection takes its client's octets; docs/develop/states.md has transitions."""

    OPENING = "opening"  # octets are kept: a PROXY header, TLS or a hook comes before the greeting
    IDLE = "idle"  # octets are commands
    CONTENT = "content"  # octets are the content of a message
    BUSY = "busy"  # octets are kept: a command or a message waits for something
    REFUSED = (
        "refused"  # nothing is read: the client is over a limit, and its last reply comes soon
    )
    CLOSING = "closing"  # octets are thrown away: our side is closed


TRANSITIONS = {
    Phase.OPENING: {Phase.IDLE, Phase.BUSY, Phase.REFUSED, Phase.CLOSING},
    Phase.IDLE: {Phase.OPENING, Phase.CONTENT, Phase.BUSY, Phase.REFUSED, Phase.CLOSING},
    Phase.CONTENT: {Phase.IDLE, Phase.BUSY, Phase.REFUSED, Phase.CLOSING},
    Phase.BUSY: {Phase.OPENING, Phase.IDLE, Phase.CONTENT, Phase.REFUSED, Phase.CLOSING},
    Phase.REFUSED: {Phase.CLOSING},
    Phase.CLOSING: set[Phase](),
}
"""Which phases follow each; the tests of smtpd check every change against it."""


class Reading(Enum):
    """Whether octets come from the client."""

    ON = auto()
    PAUSED = auto()  # smtpd does not read for now
    ENDED = auto()  # the client has closed its side
