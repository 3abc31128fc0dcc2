"""The next hops of all cases: each follows a script from a file, and keeps what it gets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.support.nexthop import EXTENSIONS, Do, NextHop, Transaction


class Kept(NamedTuple):
    """A message that a host took."""

    mail: str  # the command
    content: bytes


@dataclass
class Host:
    """A server with a script.

    `replies` are by 'POINT', or 'POINT words' if the words are in the command. The points are
    connect, EHLO, MAIL, RCPT, DATA and 'end of data'. A list has one reply for each time; the last
    one repeats, and '' is the usual reply. With `lmtp` it speaks LMTP, and 'end of data words' is
    for recipients. It does not listen if `refuses` is set. `once_reported` is instead of `replies`
    as soon as the sender has a DSN.
    """

    extensions: list[str] = field(default_factory=lambda: list(EXTENSIONS))
    replies: dict[str, str | list[str]] = field(default_factory=dict)
    once_reported: dict[str, str | list[str]] = field(default_factory=dict)
    lmtp: bool = False
    refuses: bool = False
    reported: Callable[[], object] = lambda: False
    hop: NextHop = field(init=False)
    _times: Counter[str] = field(default_factory=Counter)

    def start(self) -> NextHop:
        self.hop = NextHop(self._do, tuple(self.extensions), lmtp=self.lmtp)
        if self.refuses:
            self.hop.stop()
        return self.hop

    @property
    def kept(self) -> list[Kept]:
        """The messages that it took."""
        return [Kept(each.mail, each.content or b"") for each in self.hop.kept]

    def _do(self, point: str, command: str, _: Transaction | None) -> Do | None:
        for key, replies in (self.once_reported if self.reported() else self.replies).items():
            if not key.startswith(point):
                continue
            if (words := key[len(point) :].strip()) and words not in command:
                continue
            self._times[key] += 1
            if not isinstance(replies, str):
                replies = replies[min(self._times[key], len(replies)) - 1]
            return Do(drop=True) if replies == "close" else Do(line=replies)
        return None
