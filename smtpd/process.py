"""One serving process: a child of the master, with listening sockets that it inherited."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import sys
from functools import partial
from pathlib import Path

from pgmta.logs import get
from pgmta.service import Signals, tune_memory
from smtpd.config import SmtpdConfig
from smtpd.connection import Connection
from smtpd.hooks.hook_set import HookSet
from smtpd.keeper import READY
from smtpd.listener import SmtpListener
from smtpd.server import TURNED_AWAY, Server

_FILES = 100  # open files besides the clients' connections
_END = 1.0  # seconds for hooks whose session has ended
_GRACE = 30.0  # seconds for sessions in DATA when the process stops

log = get("smtpd")


async def serve(config: SmtpdConfig, path: Path, uri: str, descriptors: list[int]) -> None:
    """Take mail until SIGTERM or until the master is gone.

    Raises ConfigError if a hook of the file at `path` can't be loaded.
    """
    signals = Signals()
    master = _keep_stdout_for_the_master()
    _allow_files(config.limits.connections + TURNED_AWAY + _FILES)
    loop = asyncio.get_running_loop()
    hooks = await HookSet().load(config, path)
    for warning in hooks.warnings:
        log.warning("hook is used in part", reason=warning)
    shared = Server(config, uri)
    shared.start()
    heartbeat = shared.committer.heartbeat(config.environment.hostname)
    beating = asyncio.create_task(heartbeat.run())
    servers = [
        await loop.create_server(
            partial(Connection, shared, SmtpListener.make(config, listener, phases)),
            sock=socket.socket(fileno=fd),
            backlog=listener.backlog,
        )
        for fd, listener, phases in zip(descriptors, config.listen, hooks.phases, strict=True)
    ]
    signals.attach()
    tune_memory()
    log.info("serving", pid=os.getpid())
    with contextlib.suppress(BrokenPipeError):  # the master has died, and we end as well
        os.write(master, READY)
    await signals.stop.wait()
    for server in servers:
        server.close()
    if not await shared.stop(_GRACE):
        log.warning("cut off sessions that did not end", after=_GRACE)
    await hooks.stop(_END)
    beating.cancel()
    await asyncio.wait([beating])
    await heartbeat.leave()


def _keep_stdout_for_the_master() -> int:
    """Return the pipe to the master, and send to stderr what hooks print.

    The master reads one line from the pipe. With more in it a hook would block.
    """
    pipe = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115 - open until the end
    return pipe


def _allow_files(number: int) -> None:
    """Raise the soft limit of open files, which is often 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < number:
        most = number if hard == resource.RLIM_INFINITY else min(number, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
