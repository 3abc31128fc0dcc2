"""smtpd's serving process in a thread, on a real port, and a client that sends raw octets."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Self

import uvloop

from smtpd.commands.listener import SmtpListener
from smtpd.config import SmtpdConfig
from smtpd.hooks.hook_set import HookSet
from smtpd.server.server import Server
from smtpd.session.opening import open_connection
from smtpd.tls.contexts import ContextSet
from tests.support.waiting import PATIENCE


@contextmanager
def serving(uri: str, **config: Any) -> Iterator[int]:
    """The port of an smtpd with this configuration; an outage keeps nobody waiting by default."""
    settings = SmtpdConfig.model_validate(
        {
            "environment": {"hostname": "mx.example"},
            "listen": [{"name": "here", "early": "allow"}],
            **config,
            "ingest": {"wait": "5s", "patience": "0s", **config.get("ingest", {})},
        }
    )
    started, stop = threading.Event(), threading.Event()
    port = 0

    async def serve() -> None:
        nonlocal port
        loop = asyncio.get_running_loop()
        shared = Server(settings, uri)
        shared.start()
        hooks = await HookSet().load_hooks(settings, Path("smtpd.yaml"))
        tls = ContextSet(settings).load(Path("smtpd.yaml"))
        [contexts, *_] = tls.contexts
        watching = asyncio.create_task(tls.watch())
        phases = hooks.phases[0]
        mechanisms = phases.auth.offered(settings.auth.mechanisms)
        listener = SmtpListener(settings, settings.listen[0], contexts, mechanisms)
        connection = partial(open_connection, shared, listener, phases)
        server = await loop.create_server(connection, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        started.set()
        await loop.run_in_executor(None, stop.wait)
        server.close()
        watching.cancel()
        assert await shared.stop(PATIENCE)
        await hooks.stop(0.0)

    thread = threading.Thread(target=lambda: uvloop.run(serve()))
    thread.start()
    assert started.wait(PATIENCE)
    try:
        yield port
    finally:
        stop.set()
        thread.join()


class Client:
    """One connection."""

    def __init__(self, port: int, source: str = "127.0.0.1") -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE, (source, 0))
        self._lines = self.socket.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()
        self.socket.close()

    def hello(self) -> Self:
        """Read the greeting, and say EHLO."""
        assert self.reply()[:3] == "220"
        assert self.say("EHLO c")[:3] == "250"
        return self

    def over(self, secured: socket.socket) -> None:
        self._lines.close()
        self.socket = secured
        self._lines = secured.makefile("rb")

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def reply(self) -> str:
        """The next reply, all its lines; '' at the end of the connection."""
        lines: list[str] = []
        while line := self._lines.readline().decode("ascii"):
            assert re.fullmatch(r"[2345][0-9]{2}[ -][ -~]*\r\n", line), line
            lines.append(line.rstrip())
            if line[3] == " ":
                break
        return "\n".join(lines)

    def say(self, command: str) -> str:
        """Send a line and return its reply."""
        self.send(command.encode("utf-8", "surrogateescape") + b"\r\n")
        return self.reply()

    def rest(self) -> list[str]:
        """All replies until the server closes."""
        return list(iter(self.reply, ""))
