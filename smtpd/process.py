"""One serving process: a child of the master, with listening sockets that it inherited."""

from __future__ import annotations

import asyncio
import os
import socket
import sys

from queued.logs import get
from queued.service import Signals, steady
from smtpd.config import SmtpdConfig
from smtpd.dialogue import Dialogue
from smtpd.front import Front
from smtpd.keeper import READY

_GRACE = 30.0  # seconds for sessions in DATA when the process stops

log = get("smtpd")


async def serve(config: SmtpdConfig, uri: str, descriptors: list[int]) -> None:
    """Take mail until SIGTERM or until the master is gone."""
    signals = Signals()
    loop = asyncio.get_running_loop()
    front = Front(config, uri)
    front.committer.start()
    heartbeat = front.committer.heartbeat(config.environment.hostname)
    beating = asyncio.create_task(heartbeat.run())
    servers = [
        await loop.create_server(
            Dialogue(front, loop, listener.label).fresh,
            sock=socket.socket(fileno=fd),
            backlog=listener.backlog,
        )
        for fd, listener in zip(descriptors, config.listen, strict=True)
    ]
    loop.add_reader(sys.stdin.fileno(), _watch_master, signals.stop)
    steady()
    log.info("serving", pid=os.getpid())
    os.write(sys.stdout.fileno(), READY)
    await signals.stop.wait()
    loop.remove_reader(sys.stdin.fileno())
    for server in servers:
        server.close()
    if not await front.stop(_GRACE):
        log.warning("cut off sessions that did not end", after=_GRACE)
    beating.cancel()
    await asyncio.wait([beating])
    await heartbeat.leave()


def _watch_master(stop: asyncio.Event) -> None:
    """Stdin is a pipe that the master holds open: its end is the master's end."""
    if not os.read(sys.stdin.fileno(), 512):
        stop.set()
