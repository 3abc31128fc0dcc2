"""Counts of sessions, refusals, TLS and logins of one process, in plain numbers."""

from __future__ import annotations

import re
from collections import Counter

from smtpd.protocol import replies

_NAMES_BY_REPLY = {
    text: name.lower()
    for name, text in ((name, getattr(replies, name)) for name in dir(replies))
    if name.isupper() and isinstance(text, str) and re.match(r"[45]\d\d ", text)
}
_REPLIES_WITH_TEXT = [
    (text.partition("{}")[0], text.partition("{}")[2], name)
    for text, name in _NAMES_BY_REPLY.items()
    if "{}" in text
]
REASONS = frozenset((*_NAMES_BY_REPLY.values(), "hook"))
"""The reasons of refusals: the names of the replies in smtpd/protocol/replies.py, and `hook`."""


def reason_of(reply: str) -> str:
    """Return the reason of a reply 4xx or 5xx; `hook` if the reply is none of smtpd itself."""
    if name := _NAMES_BY_REPLY.get(reply):
        return name
    matches = [(len(begin) + len(end), name) for begin, end, name in _REPLIES_WITH_TEXT
             if reply.startswith(begin) and reply.endswith(end)]  # fmt: skip
    return max(matches)[1] if matches else "hook"


class SessionFigures:
    """Counts for all sessions of a process."""

    def __init__(self) -> None:
        self.sessions = 0
        self.turned_away = 0
        self.failed_handshakes = 0
        self.tls: Counter[str] = Counter()
        """TLS sessions by version."""
        self.logins: Counter[str] = Counter()
        """Logins by result: ok, failed (a wrong password), unavailable."""
        self._refused: Counter[str] = Counter()

    def count_session(self) -> None:
        """Count a session that begins."""
        self.sessions += 1

    def count_turned_away(self) -> None:
        """Count a connection over a limit."""
        self.turned_away += 1

    def count_tls(self, version: str) -> None:
        """Count a handshake."""
        self.tls[version] += 1

    def count_failed_handshake(self) -> None:
        """Count a handshake that failed."""
        self.failed_handshakes += 1

    def count_login(self, result: str) -> None:
        """Count a login that ended: ok, failed or unavailable."""
        self.logins[result] += 1

    def refuse(self, reply: str) -> None:
        """Count a reply 4xx or 5xx by its reason."""
        self._refused[reason_of(reply)] += 1

    @property
    def refused(self) -> dict[str, int]:
        """Refusals by reason."""
        return dict(self._refused)
