"""One serving process: a child of the master, with listening sockets that it inherited."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pgmta.errors import FormerDatabase
from pgmta.logs import get
from pgmta.service import Signals, report_error, start_part, trim_memory, tune_memory
from smtpd.commands.listener import SmtpListener
from smtpd.config import SmtpdConfig
from smtpd.hooks.hook_set import HookSet
from smtpd.process.child_pipe import READY_LINE
from smtpd.process.sockets import BACKLOG
from smtpd.process.teller import Teller
from smtpd.server.log import Notice
from smtpd.server.server import MAX_TURNED_AWAY, Server
from smtpd.session.connection import Connection
from smtpd.session.opening import open_connection
from smtpd.tls.contexts import ContextSet

_MAX_OTHER_FILES = 100  # open besides the connections of clients
_HOOKS_TIMEOUT_S = 1.0  # for hooks whose session has ended
_TRIM_INTERVAL_S = 60.0
_MANY_HANDSHAKES = 500  # so many in that time leave memory to give back
_GRACE_S = 30.0  # for sessions in DATA when the process stops

log = get("smtpd")


async def serve(
    config: SmtpdConfig, path: Path, uri: str, descriptors: list[int], tls: ContextSet
) -> None:
    """Take mail until SIGTERM, until the master is gone or until a part ends by an error.

    Raises ConfigError if a hook of the file at `path` can't be loaded; FormerDatabase.
    """
    signals = Signals()
    master = _keep_stdout_for_the_master()
    _log_ignored()
    _allow_files(config.limits.connections + MAX_TURNED_AWAY + _MAX_OTHER_FILES)
    hooks = await HookSet().load_hooks(config, path)
    for warning in hooks.warnings:
        log.warning("hook is used in part", reason=warning)
    shared = Server(config, uri)
    shared.start()
    heartbeat = shared.committer.heartbeat(config.environment.hostname)
    answered = asyncio.Event()
    stop, beat = signals.stop, partial(heartbeat.run, shared.committer.outage.refuse, answered)
    duties = [
        start_part("heartbeat", beat, stop),
        start_part("certificates", tls.watch),
        start_part("memory", partial(_trim, shared)),
    ]
    for task in (*shared.committer.tasks, *shared.committer.chunks.tasks):
        # its sessions would wait for ever, so the process ends and the master starts another
        report_error("intake", task, stop)
    parts = zip(descriptors, config.listen, hooks.phases, tls.contexts, strict=True)
    servers = []
    for fd, entry, phases, contexts in parts:
        mechanisms = phases.auth.offered(config.auth.mechanisms)
        listener = SmtpListener(config, entry, contexts, mechanisms)
        connection = partial(open_connection, shared, listener, phases)
        servers.append(await _listen(connection, socket.socket(fileno=fd)))
    teller = Teller(master, shared, hooks, heartbeat.look)
    signals.attach(teller.ask)
    tune_memory()
    duties.append(start_part("announcement", partial(_announce, answered)))
    with contextlib.suppress(BrokenPipeError):  # the master has died, and we end as well
        os.write(master, READY_LINE)
    await stop.wait()
    for server in servers:
        server.close()
    if not await shared.stop(_GRACE_S):
        log.warning("cut off sessions that did not end", after=_GRACE_S)
    await hooks.stop(_HOOKS_TIMEOUT_S)
    for duty in duties:
        duty.cancel()
    ends = await asyncio.gather(*duties, return_exceptions=True)
    await heartbeat.leave()
    if config.metrics.listen:
        teller.tell()  # the last figures
    if any(isinstance(end, FormerDatabase) for end in ends):
        raise FormerDatabase


async def _announce(answered: asyncio.Event) -> None:
    """Log that the process serves, unless PostgreSQL refuses its login: it takes no mail then."""
    await answered.wait()
    log.info("serving", pid=os.getpid())


async def _listen(connection: Callable[[], Connection], sock: socket.socket) -> asyncio.Server:
    loop = asyncio.get_running_loop()
    if sock.family == socket.AF_UNIX:
        return await loop.create_unix_server(connection, sock=sock, backlog=BACKLOG)
    return await loop.create_server(connection, sock=sock, backlog=BACKLOG)


async def _trim(server: Server) -> None:
    """Give memory back after many TLS sessions. Runs until it is cancelled.

    uvloop allocates 256 KB per session. Between such buffers malloc finds ever new places.
    """
    before, once_more = 0, False
    while True:
        await asyncio.sleep(_TRIM_INTERVAL_S)
        many = server.handshakes - before >= _MANY_HANDSHAKES
        if many or once_more:
            before = server.handshakes
            trim_memory()
        once_more = many  # because their sessions may end only later


def _log_ignored() -> None:
    """Log errors that Python can't raise; a name in SNI that is not ASCII is one."""
    notice = Notice("error that could not be raised")
    sys.unraisablehook = lambda ignored: notice.note(reason=repr(ignored.exc_value))


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
        allowed = number if hard == resource.RLIM_INFINITY else min(number, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
