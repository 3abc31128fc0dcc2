"""The embedded PostgreSQL: one server under `environment.directory`, shared by its processes.

Every process that uses the server has a shared lock; the last one to leave stops the server. The
kernel releases the lock of a killed process. Every daemon starts a server that died again
(docs/decisions/embedded-server.md).
"""

from __future__ import annotations

import atexit
import contextvars
import fcntl
import os
import threading
import time
from contextlib import suppress
from pathlib import Path

from pgmta.errors import ServerRefused, StoreUnavailable
from pgmta.logs import get
from pgmta.postgres.embedded.embedded_server import DATABASE, OWNER, EmbeddedServer
from pgmta.postgres.embedded.folders import make_parents, open_own
from pgmta.postgres.embedded.programs import forget_variables

SMTPD = "pgmta_smtpd"
"""The role of smtpd."""

QUEUED = "pgmta_queued"
"""The role of queued."""

WEB = "pgmta_web"
"""The role of `queued web`."""

_ROLES = (SMTPD, QUEUED, WEB)
_LOOK = 0.5  # seconds between two checks of the server
_AGAIN = 1.0  # seconds between two tries to start it
_TELL = 60.0  # seconds between two lines in the log that it does not start
_LEAVE = 5.0  # seconds for a start under way when the process ends

log = get("embedded")
_directories: dict[str, Path] = {}


def start(directory: Path, role: str = OWNER, *, supervise: bool = False) -> str:
    """Return the URI of the PostgreSQL in `directory`, and start it if it does not run.

    Blocks (about a second for a new server). With `supervise` this process starts a server that
    died again, until the process ends. A server that has data and does not start now is no error
    then. Raises StoreUnavailable with the end of the server's log if the server cannot start.
    Raises ServerRefused if an operator has to repair something first.
    """
    directory = directory.resolve()
    make_parents(directory)
    users = _enter(directory)
    server = EmbeddedServer(directory)
    try:
        server.start(_ROLES)
    except StoreUnavailable as error:
        if isinstance(error, ServerRefused) or not (supervise and server.exists()):
            os.close(users)
            raise
        log.error("embedded PostgreSQL does not start", reason=str(error))
    supervisor = Supervisor(server) if supervise else None
    atexit.register(_leave, server, users, supervisor)
    uri = server.uri(DATABASE, role)
    _directories[uri] = directory
    return uri


def join(directory: Path, *, supervise: bool = False) -> None:
    """Count as a user of the server until the process ends; another process has started it.

    With `supervise` this process starts it again as `start` says. Raises ServerRefused.
    """
    forget_variables()
    server, users = EmbeddedServer(directory), _enter(directory)
    atexit.register(_leave, server, users, Supervisor(server) if supervise else None)


def directory_of(uri: str) -> Path | None:
    """Return the folder of the embedded server whose URI `start` has returned in this process."""
    return _directories.get(uri)


def _enter(directory: Path) -> int:
    users = open_own(directory / "postgres.users")
    fcntl.flock(users, fcntl.LOCK_SH)
    return users


def _leave(server: EmbeddedServer, users: int, supervisor: Supervisor | None) -> None:
    if supervisor:
        supervisor.stop()
    with suppress(BlockingIOError):
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        server.stop()
    os.close(users)


class Supervisor:
    """Starts a server that died again, in a separate thread."""

    def __init__(self, server: EmbeddedServer) -> None:
        self._server = server
        self._over = threading.Event()
        self._ended, self._end = os.pipe()  # the first can be read once the second is closed
        self._logged = -_TELL
        # with the context, so that its lines in the log name the daemon
        work = contextvars.copy_context().run
        self._thread = threading.Thread(
            target=work, args=(self._run,), name="embedded", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """End the thread, without waiting for a start that takes long."""
        self._over.set()
        os.close(self._end)
        self._thread.join(_LEAVE)

    def _run(self) -> None:
        while not self._over.wait(_LOOK):
            if self._server.running():
                self._server.await_end(self._ended)
                continue
            try:
                self._start()
            except Exception as error:  # of any kind: no other part of the process would start it
                if time.monotonic() > self._logged + _TELL:
                    self._logged = time.monotonic()
                    log.error("embedded PostgreSQL does not start", reason=str(error))
                self._over.wait(_AGAIN)

    def _start(self) -> None:
        if not self._server.exists():  # a new and empty one would hide that the data are gone
            raise StoreUnavailable(f"{self._server.data} has gone")
        if self._server.start(_ROLES):
            log.warning("embedded PostgreSQL had died and was started again")
