"""The listening sockets: bound by the master, or passed on by systemd."""

from __future__ import annotations

import errno
import os
import socket
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

from pgmta.errors import PgmtaError
from pgmta.port_user import bind_problem
from smtpd.process.plan import ListeningPlace

if TYPE_CHECKING:
    from pgmta.config.yaml_file import Key
    from smtpd.config import Listener

BACKLOG = 1024  # connections that may wait for accept
_FIRST_DESCRIPTOR = 3  # of the sockets of systemd (sd_listen_fds(3))
_FAMILIES = (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX)
_SOCKET_MODE = 0o666  # as with a port of this host, all its users may connect
_VARIABLES = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")


def bind(listener: ListeningPlace, count: int) -> list[socket.socket]:
    """Return one listening socket for each process.

    Each has its own accept queue, shared out by the kernel (SO_REUSEPORT); the master keeps them
    open, so that connections survive the restart of a process. Raises PgmtaError.
    """
    family = socket.AF_INET6 if ":" in listener.address else socket.AF_INET
    at = (listener.address, listener.port)
    sockets: list[socket.socket] = []
    try:
        with socket.socket(family) as probe:
            # with SO_REUSEPORT alone, a second smtpd would quietly take half of the mail
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(at)
        for _ in range(count):
            sock = socket.socket(family)
            sockets.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind(at)
            sock.listen(BACKLOG)
    except OSError as error:
        for sock in sockets:
            sock.close()
        reason = bind_problem(error, listener.port)
        raise PgmtaError(
            f"can't listen on {listener.address} port {listener.port}: {reason}"
        ) from None
    return sockets


def bind_path(listener: ListeningPlace, count: int) -> list[socket.socket]:
    """Return a Unix socket that all processes accept from. Raises PgmtaError.

    The file of a server that has died is replaced; one of a living server is not.
    """
    path = str(listener.socket)
    sock = socket.socket(socket.AF_UNIX)
    try:
        with socket.socket(socket.AF_UNIX) as probe, suppress(FileNotFoundError):
            if not stat.S_ISSOCK(os.lstat(path).st_mode):
                raise OSError(errno.EEXIST, "the file is no socket")
            if probe.connect_ex(path) == 0:
                raise OSError(errno.EADDRINUSE, "another server listens there")
            os.unlink(path)
        sock.bind(path)
        os.chmod(path, _SOCKET_MODE)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise PgmtaError(f"can't listen on {path}: {error.strerror}") from None
    return [sock, *(sock.dup() for _ in range(count - 1))]


def collisions(listeners: list[Listener]) -> list[tuple[Key, str]]:
    """Return the entries of `listen` that can't be bound beside an earlier one, and why."""
    found: list[tuple[Key, str]] = []
    for number, listener in enumerate(listeners):
        for before in range(number):
            if listener.meets(listeners[before]):
                place = listener.socket or f"port {listener.port}"
                found.append((("listen", number), f"listen[{before}] has the same {place}"))
    return found


def passed() -> list[socket.socket]:
    """Return the sockets that systemd has passed on to this process, once."""
    said = {name: os.environ.pop(name, "") for name in _VARIABLES}
    if said["LISTEN_PID"] != str(os.getpid()) or not said["LISTEN_FDS"].isdecimal():
        return []
    numbers = range(_FIRST_DESCRIPTOR, _FIRST_DESCRIPTOR + int(said["LISTEN_FDS"]))
    return [socket.socket(fileno=os.dup(number)) for number in numbers]


def listening(listeners: list[ListeningPlace], count: int) -> list[list[socket.socket]]:
    """Return a list of sockets for each listener, one socket per process.

    A socket of systemd serves the listener that has its address and port. All processes accept
    from it, or they share several. The other listeners are bound here. Raises PgmtaError.
    """
    given: dict[str, list[socket.socket]] = {}
    for sock in passed():
        if sock.family not in _FAMILIES or sock.type != socket.SOCK_STREAM:
            raise PgmtaError("systemd passes on a socket that is neither for TCP nor of Unix")
        place = sock.getsockname()
        name = place if isinstance(place, str) else f"{place[0]} port {place[1]}"
        given.setdefault(name, []).append(sock)
    for name in given.keys() - {_name(listener) for listener in listeners}:
        raise PgmtaError(f"systemd passes on {name}, which no entry of listen has")
    found = []
    for listener in listeners:
        sockets = given.get(_name(listener), [])
        shared = [sockets[n % len(sockets)] for n in range(count)] if sockets else None
        own = bind_path if listener.socket else bind
        found.append(shared or own(listener, count))
    return found


def _name(listener: ListeningPlace) -> str:
    return str(listener.socket or f"{listener.address} port {listener.port}")
