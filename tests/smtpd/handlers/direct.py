"""Handlers that await nothing, and say where they run."""

from __future__ import annotations

import asyncio
import socket
import sqlite3
import sys
import threading
import time
from typing import Any


def place() -> str:
    """Whether the caller runs among the sessions."""
    return "direct" if threading.current_thread() is threading.main_thread() else "thread"


def _do(word: str, seconds: float) -> None:
    if word == "lock":
        threading.Event().wait(seconds)
    if word == "receive":
        one, other = socket.socketpair()
        one.settimeout(seconds)
        try:
            one.recv(1)
        except TimeoutError:
            pass
        finally:
            one.close()
            other.close()
    if word == "spin":
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pass
    if word == "swallow":
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                threading.Event().wait(end - time.monotonic())
            except BaseException:
                return
    if word == "sleep":
        time.sleep(seconds)
    if word == "catch":
        try:
            time.sleep(seconds)
        except BaseException:
            return
    if word == "look":
        socket.getaddrinfo("localhost", 25)
    if word == "raise":
        raise LookupError("on purpose")
    if word == "exit":
        sys.exit(3)
    if word == "cancel":
        raise asyncio.CancelledError
    if word == "task":
        asyncio.get_running_loop().create_task(asyncio.sleep(0)).cancel()


class Quick:
    """Does what the local part says, such as `lock+3`, without `await`."""

    async def handle_RCPT(
        self, server: Any, session: Any, envelope: Any, address: str, options: list[str]
    ) -> Any:
        word, _, rest = address.partition("@")[0].partition("+")
        envelope.rcpt_tos.append(address)
        _do(word, float(rest or 0))
        if word == "loop":
            session.loop.call_soon(int)
        if word == "none":
            return None
        if word == "refuse":
            return "550 5.1.1 No"
        return f"250 2.1.5 {place()}"


class Both(Quick):
    """Sees contents too."""

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        if b"refuse" in envelope.content:
            return f"554 5.7.1 {place()}"
        envelope.content = b"X-Place: yes\r\n" + envelope.content
        if b"raise" in envelope.content and place() == "direct":
            raise LookupError("on purpose")
        return f"250 2.0.0 {place()}"


class Awaiting(Quick):
    """Has one method that could await."""

    async def handle_NOOP(self, server: Any, session: Any, envelope: Any, arg: Any) -> str:
        if arg == "wait":
            await asyncio.sleep(0)
        return "250 2.0.0 Ok"


class Database:
    """Has a connection that only one thread may use, and answers for its errors."""

    def __init__(self) -> None:
        self.connection = sqlite3.connect(":memory:")

    async def handle_RCPT(
        self, server: Any, session: Any, envelope: Any, address: str, options: list[str]
    ) -> Any:
        try:
            self.connection.execute("SELECT 1").fetchone()
        except sqlite3.Error as error:
            return f"451 4.3.0 {type(error).__name__}"
        envelope.rcpt_tos.append(address)
        return f"250 2.1.5 {place()}"
