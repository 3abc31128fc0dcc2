"""Handlers that do what no handler should."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from typing import Any

from tests.support.waiting import take_time, take_time_async

release = threading.Event()


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
            take_time(float(address.partition("+")[2].partition("@")[0]))
        if word == "spin":
            end = time.monotonic() + float(address.partition("+")[2].partition("@")[0])
            while time.monotonic() < end:
                pass
        if word == "callback":  # ends the event loop of the thread, not only its task
            server.loop.call_soon(sys.exit, 3)
        if word == "push":
            server.pushed = None
        if word == "take":
            server.envelope = None
        if word == "wait":
            await take_time_async(float(address.partition("+")[2].partition("@")[0]))
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
