"""Handlers that use what smtpd has beyond aiosmtpd's interface."""

from __future__ import annotations

import threading
from typing import Any

from aiosmtpd.smtp import MISSING

from tests.support.waiting import take_time

SEEN: list[Any] = []
BEGUN: list[str] = []  # addresses of calls that block
WRONG: dict[str, Any] = {
    "metadata": {"a": 1},
    "key": {"": "x"},
    "own": {"_exempt": "x"},
    "priority": 10,
    "bool": True,
    "hold": "a\nb",
    "quarantine": "x" * 2000,
    "field": [("X-A", "b\r\nX-B: c")],
    "name": [("X A", "b")],
    "long": [("X-A", "b" * 1000)],
    "text": [("X-A", "ü")],
    "single": ["X-A: b"],
}
_ATTRIBUTES = {"key": "metadata", "own": "metadata", "bool": "priority", "name": "fields",
               "long": "fields", "text": "fields", "single": "fields",
               "field": "fields"}  # fmt: skip


class Decider:
    """Decides by the local part of the recipient, and by a header field."""

    async def handle_RCPT(
        self, server: Any, session: Any, envelope: Any, address: str, options: list[str]
    ) -> Any:
        word = address.partition("@")[0]
        decisions = envelope.pgmta
        if word in WRONG:
            setattr(decisions, _ATTRIBUTES.get(word, word), WRONG[word])
            return MISSING
        if word == "refused":
            decisions.hold = "not for this one"
            return "550 5.1.1 No"
        if word == "other":
            envelope.pgmta = "decisions"
            return MISSING
        if word == "urgent":
            decisions.priority = 0
            decisions.metadata["class"] = "urgent"
        if word == "held":
            decisions.hold = "by a hook"
        return MISSING

    async def handle_HEADER(
        self, server: Any, session: Any, envelope: Any, header: list[tuple[str, str]]
    ) -> Any:
        values = dict(header)
        if "X-Refuse" in values:
            return "554 5.7.1 Not this header"
        if "X-Virus" in values:
            envelope.pgmta.quarantine = values["X-Virus"]
        if "X-Scan" in values:
            envelope.pgmta.fields += [("X-Scanned", "yes"), ("X-Long", "a\n b")]
        SEEN.append(header)
        return "250 2.0.0 not for the client"


class Failing:
    """Fails as the local part of the recipient says."""

    async def handle_RCPT(
        self, server: Any, session: Any, envelope: Any, address: str, options: list[str]
    ) -> Any:
        if address.startswith("raise"):
            envelope.rcpt_tos.append("left@example.org")
            raise RuntimeError("on purpose")
        return None if address.startswith("none") else MISSING

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> Any:
        if b"raise" in envelope.content:
            envelope.content = b"half done"
            raise RuntimeError("on purpose")
        return MISSING


class Sleeper:
    """A plain handler that blocks."""

    def handle_RCPT(
        self, server: Any, session: Any, envelope: Any, address: str, options: list[str]
    ) -> Any:
        take_time(float(address.partition("@")[0]))
        SEEN.append(threading.current_thread().name)
        return MISSING


class Blocker:
    """The same as a coroutine, which is what aiosmtpd's Proxy does."""

    async def handle_RCPT(
        self, server: Any, session: Any, envelope: Any, address: str, options: list[str]
    ) -> Any:
        BEGUN.append(address)
        take_time(float(address.partition("@")[0]))
        assert server.loop is session.loop
        SEEN.append(threading.current_thread().name)
        return MISSING


class Reader:
    """Reads content that may be a file."""

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> Any:
        content = envelope.content
        if isinstance(content, bytes):
            SEEN.append(("bytes", len(content)))
            return MISSING
        first = content.read(10)
        content.seek(-10, 2)
        SEEN.append(("file", first, content.read(), content.seek(0, 2)))
        content.seek(0)
        if b"refuse" in content.read(1000):
            return "554 5.7.1 No"
        content.seek(0)
        if b"change" in content.read(1000):
            envelope.content = b"changed\r\n"
        return MISSING


class Watcher:
    """Notes the beginning and the end of sessions."""

    async def handle_CONNECT(self, server: Any, session: Any, envelope: Any) -> Any:
        SEEN.append(("CONNECT", session.peer[0]))
        replies: dict[str, Any] = {
            "127.0.0.2": "554 5.7.1 Not you",
            "127.0.0.3": "421 4.7.0 Later",
            "127.0.0.4": "220 mx.example hello",
            "127.0.0.5": None,
            "127.0.0.6": "250 Ok",
        }
        session.note = session.peer[0]
        return replies.get(session.peer[0], MISSING)

    async def handle_DISCONNECT(self, server: Any, session: Any, envelope: Any) -> Any:
        SEEN.append(("DISCONNECT", session.note, session.host_name))
