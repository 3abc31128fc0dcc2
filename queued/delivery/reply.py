"""The result of an attempt for one recipient, and what it means (pure)."""

from __future__ import annotations

from dataclasses import dataclass

from pgmta.errors import DeliveryError
from pgmta.model import Reply
from pgmta.states import Event
from pgmta.text import printable

_STORED = 1020  # octets of a reply's text that are kept: 1 KB with the code before it
_SHORT = 512  # characters up to which nothing has to be cut, with any note
_OK = 2  # first digit of a positive reply
_ABOUT_THE_MAIL = ("MAIL", "RCPT", "DATA", "end of data")
"""Commands whose 5xx concerns this mail; before them it concerns the host, and may pass."""


def stored(text: str, note: str = "") -> str:
    """Return the text as it is kept: one printable line.

    It has at most 1,020 octets of UTF-8, whole characters, the note at its end included.
    """
    if len(text) < _SHORT and text.isascii() and text.isprintable():
        return text + note
    octets = _STORED - len(note)
    text = printable(text[:octets].replace("\n", " "))
    if len(text) * 4 > octets:
        text = text.encode()[:octets].decode("utf-8", "ignore")
    return text + note


@dataclass(frozen=True, slots=True)
class Result:
    """What a next hop answered for one recipient, or why it was not asked."""

    reply: Reply
    host: str = ""
    command: str = ""
    permanent: bool = False
    unknown: bool = False
    begun: bool = True

    @classmethod
    def of(cls, error: DeliveryError, host: str) -> Result:
        """The same result for everybody: the dialogue itself failed."""
        return cls(
            Reply(error.code, error.line), host, error.command, error.permanent, error.unknown
        )

    @property
    def event(self) -> Event:
        """Sort the reply (RFC 5321, section 4.2.1).

        Only 2xx to the end of data is a delivery. After the final dot anything but 2xx, 4xx and 5xx
        leaves open whether the server has the message. Before it, anything that is no 5xx counts as
        a failure for now: a server that breaks the protocol gets another chance.
        """
        if not self.begun:
            return Event.HAND_BACK
        if self.unknown:
            return Event.UNKNOWN
        first = self.reply.code // 100
        if self.command == "end of data" and first not in (4, 5):
            return Event.DELIVERED if first == _OK else Event.UNKNOWN
        if self.permanent or (first == 5 and self.command in _ABOUT_THE_MAIL):
            return Event.FAIL
        return Event.DEFER


CUT_OFF = Result(Reply(0, "interrupted after the final dot"), command="end of data", unknown=True)
"""For an attempt that we had to end ourselves while its outcome was on the way."""

NOT_BEGUN = Result(Reply(0, ""), begun=False)
"""For an attempt that ended before it could have any effect."""


def internal(error: Exception, *, unknown: bool = False) -> DeliveryError:
    """Return an error of this program as a failed attempt; `unknown`: the final dot was out."""
    line = f"internal error: {type(error).__name__}: {error}"
    return DeliveryError(line, command="end of data" if unknown else "", unknown=unknown)
