"""The result of an attempt for one recipient, and what it means (pure)."""

from __future__ import annotations

from dataclasses import dataclass

from queued.errors import DeliveryError
from queued.model import Reply
from queued.states import Event

_ABOUT_THE_MAIL = ("MAIL", "RCPT", "DATA", "end of data")
"""Commands whose 5xx concerns this mail; before them it concerns the host, and may pass."""


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

        Only 2xx to the end of data is a delivery. Anything else that is no 5xx counts as a failure
        for now: a server that breaks the protocol gets another chance, and the message is kept.
        """
        if not self.begun:
            return Event.HAND_BACK
        if self.unknown:
            return Event.UNKNOWN
        first = self.reply.code // 100
        if first == 2 and self.command == "end of data":
            return Event.DELIVERED
        if self.permanent or (first == 5 and self.command in _ABOUT_THE_MAIL):
            return Event.FAIL
        return Event.DEFER


CUT_OFF = Result(Reply(0, "interrupted after the final dot"), command="end of data", unknown=True)
"""For an attempt that we had to end ourselves while its outcome was on the way."""

NOT_BEGUN = Result(Reply(0, ""), begun=False)
"""For an attempt that ended before it could have any effect."""
