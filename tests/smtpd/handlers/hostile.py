"""Handlers that do what no handler should."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from contextlib import suppress
from typing import Any

from tests.support.waiting import PATIENCE, eventually

release = threading.Event()


def held(address: str) -> float:
    """Return the seconds that are behind the word, or a long time: until `release`."""
    return float(address.partition("@")[0].partition("+")[2] or PATIENCE)


class Script:
    """Does what the local part of the recipient says."""

    async def handle_RCPT(
        self, server: Any, session: Any, envelope: Any, address: str, options: list[str]
    ) -> Any:
        word = address.partition("@")[0].partition("+")[0]
        if word in ANSWERS:
            return ANSWERS[word]
        if word == "raise":
            raise RuntimeError("on purpose")
        if word == "exit":
            raise SystemExit(3)
        if word == "cancel":
            raise asyncio.CancelledError
        if word == "never":
            await asyncio.Event().wait()
        if word == "stubborn":
            while True:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    if release.is_set():
                        raise
        if word == "block":
            release.wait(held(address))
        if word == "spin":
            end = time.monotonic() + held(address)
            while time.monotonic() < end and not release.is_set():
                pass
        if word == "callback":  # ends the event loop of the thread, not only its task
            server.loop.call_soon(sys.exit, 3)
        if word == "push":
            server.pushed = None
        if word == "take":
            server.envelope = None
        if word == "wait":
            with suppress(AssertionError):
                await eventually(release.is_set, held(address))
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_NOOP(self, server: Any, session: Any, envelope: Any, word: str | None) -> str:
        if word == "recipients":
            envelope.rcpt_tos = 5
        if word == "sender":
            envelope.mail_from = 5
        if word == "add":
            envelope.rcpt_tos.append("added@example.org")
        if word == "name":
            session.host_name = 5
        return "250 OK"


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


ANSWERS: dict[str, Any] = {
    "none": None,
    "number": 250,
    "word": "hello",
    "bare": "250",
    "newline": "250 OK\r\n250 OK",
    "feed": "250 OK\n",
    "octets": "250 Gr\xfc\xdfe",
    "escape": "250 \x1b[31mred",
    "long": "250 " + "x" * 600,
    "endless": "250 " + "x" * 500_000 + "\n",
    "list": ["250 OK"],
    "empty": "",
    "intermediate": "354 go on",
    "unprintable": Unprintable(),
    "refuse": "550 5.1.1 No such user",
    "later": "450 4.2.0 Not now",
}
GOOD = ("refuse", "later")
