"""Sees that Python code begins something that may wait, by the audit events of Python.

The events come from Python's own modules (PEP 578). A library in C that waits by itself has none.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

_BOUND = "sqlite3.connect/handle"  # only the thread that opens such a connection may use it
_EVENTS = frozenset({
    _BOUND, "fcntl.flock", "fcntl.lockf", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn",
    "os.spawn", "os.system", "socket.connect", "socket.getaddrinfo", "socket.gethostbyaddr",
    "socket.gethostbyname", "socket.getnameinfo", "socket.sendmsg", "socket.sendto",
    "sqlite3.connect", "subprocess.Popen", "time.sleep",
})  # fmt: skip

_begun: set[int] = set()
_bound: set[int] = set()
_guards: dict[int, Callable[[str], None]] = {}
_installed = False


def install() -> None:
    """Begin to see. Python offers no end of it; an event costs 0.1 µs from then on."""
    global _installed
    if not _installed:
        _installed = True
        sys.addaudithook(_see)


def start_thread() -> None:
    """Forget an ended thread that had the number of the calling one."""
    _begun.discard(threading.get_ident())
    _bound.discard(threading.get_ident())


def forget() -> None:
    """Forget what the calling thread has begun."""
    _begun.discard(threading.get_ident())


def begun() -> bool:
    """Return whether the calling thread has begun something since `forget`."""
    return threading.get_ident() in _begun


def bound(thread: int) -> bool:
    """Return whether the thread ever made an object that no other thread may use."""
    return thread in _bound


def guard(thread: int, what: Callable[[str], None] | None) -> None:
    """Call `what` before the thread begins something; an error that it raises prevents it."""
    if what:
        _guards[thread] = what
    else:
        _guards.pop(thread, None)


def _see(event: str, _: object, events: frozenset[str] = _EVENTS) -> None:
    if event not in events:  # an argument: at its end Python takes the module's names away
        return
    thread = threading.get_ident()
    _begun.add(thread)
    if event == _BOUND:
        _bound.add(thread)
    if thread in _guards:
        _guards[thread](event)
