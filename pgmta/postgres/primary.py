"""Which server is the primary: its host, which is asked first, and its timeline.

A silent primary is left after 10 s. One that answers and takes no writes, or whose processes hang,
is found out by the first connection that finds another timeline: then all connections to the
former primary are hung up, also those that only listen.

When no host takes writes, the process searches: it asks all hosts again and again, so that a silent
one does not keep it from one that is promoted meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from contextlib import suppress
from typing import Any, Final
from weakref import WeakSet

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

_LIMITS: Final[dict[str, Any]] = {
    "connect_timeout": 3,  # seconds, for each host
    # seconds: a silent server is believed for 9 s at rest, and for 10 s with a statement under way
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 2,
    "tcp_user_timeout": 10_000,  # milliseconds
}
_HOST_FIELDS: Final = ("host", "hostaddr", "port")
_SEARCH_INTERVAL_S = 0.5  # from the answer of a host to the next question

TIMELINE: Final = """
CASE WHEN NOT pg_is_in_recovery() AND current_setting('transaction_read_only') = 'off' THEN
    system_identifier
        # ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::bigint
END, (SELECT last_value FROM pg_sequences WHERE (schemaname, sequencename) = ('pgmta', 'timelines'))
"""
"""Two columns, beside pg_control_system(), of a session that may find no schema or a standby.

They are what pgmta.server_timeline() returns, and the timeline that is noted; each may be null.
"""

NOTE_TIMELINE: Final = "SELECT pgmta.note_timeline()"
"""The statement for a session with another timeline than the one that is noted."""

type _Host = tuple[str, ...]


class _Primary:
    """What this process knows of the primary of one connection string."""

    def __init__(self) -> None:
        self.host: _Host | None = None
        """The host that was the primary last; None: not known."""
        self.lost = False
        """Whether no host took writes since."""
        self.timeline: int | None = None
        """Its timeline."""
        self.connections: WeakSet[psycopg.BaseConnection[Any]] = WeakSet()
        """Connections to it."""

    def order(self, hosts: list[_Host]) -> list[_Host]:
        """Return the hosts in the order in which they are asked."""
        others = [host for host in hosts if host != self.host]
        first = [host for host in hosts if host == self.host]
        return [*others, *first] if self.lost else [*first, *others]


class _Search:
    """A search under way, and how many wait for it."""

    def __init__(self, task: asyncio.Task[None]) -> None:
        self.task = task
        self.waiting = 0


_primaries: dict[str, _Primary] = {}
_searches: dict[tuple[str, asyncio.AbstractEventLoop], _Search] = {}
_lock = threading.Lock()  # clients may have threads


def limited(uri: str) -> str:
    """Return the connection string with time limits for a silent server, where it has none."""
    given = conninfo_to_dict(uri)
    return make_conninfo(uri, **{key: v for key, v in _LIMITS.items() if key not in given})


def writable(uri: str) -> str:
    """Return the connection string for a server that takes writes, with time limits.

    If it names several hosts, that is asked for, unless it says otherwise; and the host that was
    the primary last is asked first. After a connection without success it is asked last.
    """
    given = _given(limited(uri))
    hosts = _hosts(given)
    attributes = given["target_session_attrs"] or "read-write"
    if len(hosts) < 2:
        # the file of a service may name several
        more = {"target_session_attrs": attributes} if given["service"] else {}
        return make_conninfo(limited(uri), **more)
    given["target_session_attrs"] = attributes
    with _lock:
        if primary := _primaries.get(uri):
            hosts = primary.order(hosts)
    return _at(hosts, given)


async def search(uri: str) -> None:
    """After a connection without success, return when a host takes writes: it is asked first then.

    Connections that are made meanwhile wait for the same search. It ends without success when each
    host has failed; until then the others are asked again. Raises psycopg.Error.
    """
    primary = _primaries.get(uri)
    if not (primary and primary.lost and host_count(uri) > 1):
        return
    key = uri, asyncio.get_running_loop()
    found = _searches.get(key)
    if not found:
        found = _searches[key] = _Search(asyncio.create_task(_search(writable(uri), primary)))
    found.waiting += 1
    try:
        await asyncio.shield(found.task)
    finally:
        found.waiting -= 1
        if not found.waiting or found.task.done():
            found.task.cancel()
            if _searches.get(key) is found:
                del _searches[key]


async def _search(uri: str, primary: _Primary) -> None:
    """Note the first host that takes writes. The last of them is asked when the others failed."""
    given = _given(uri)
    hosts = _hosts(given)
    failures: dict[int, psycopg.Error] = {}  # the latest of each host, by its place
    others_failed = asyncio.Event()

    async def ask(place: int) -> _Host:
        if place == len(hosts) - 1:
            await others_failed.wait()
        while True:
            try:
                connection = await psycopg.AsyncConnection.connect(
                    _at([hosts[place]], given), application_name="pgmta search"
                )
            except psycopg.Error as error:
                failures[place] = error
            else:
                await connection.close()
                return hosts[place]
            if len(failures) == len(hosts):
                raise psycopg.OperationalError("\n".join(map(str, failures.values())))
            if len(failures) == len(hosts) - 1:
                others_failed.set()
            await asyncio.sleep(_SEARCH_INTERVAL_S)

    tasks = [asyncio.create_task(ask(place)) for place in range(len(hosts))]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        host = done.pop().result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    with _lock:
        primary.host, primary.lost = host, False


def found(uri: str, connection: psycopg.BaseConnection[Any], timeline: int | None) -> None:
    """Note which server a connection by `writable` has found, and hang up on the former primary.

    `timeline` is None if the server takes no writes.
    """
    if timeline is None:
        return
    given, info = _given(uri), connection.info
    match = [
        host
        for host in _hosts(given)
        if (host[0] or host[1]) in (info.host, info.hostaddr)
        and (host[2] or "5432") == str(info.port)
    ]
    with _lock:
        primary = _primaries.setdefault(uri, _Primary())
        before = primary.timeline
        primary.host, primary.timeline = match[0] if match else None, timeline
        primary.lost = False
        # the same timeline is the same server, which may have several names
        former = list(primary.connections) if timeline != before else []
        for each in former:
            primary.connections.discard(each)
        primary.connections.add(connection)
    for each in former:
        _hang_up(each)


def timeline_of(uri: str) -> int | None:
    """Return the timeline of the last primary that this process has found; None: of none yet."""
    primary = _primaries.get(uri)
    return primary.timeline if primary else None


def missed(uri: str, asked: str) -> None:
    """Note that no host took writes, `asked` as `writable` said: the next one waits for a `search`.

    Another connection may have found the primary meanwhile: then this one was asked too early.
    """
    if writable(uri) == asked:
        with _lock:
            _primaries.setdefault(uri, _Primary()).lost = True


def host_count(uri: str) -> int:
    """Return how many hosts a connection string names, at least 1."""
    return max(1, len(_hosts(_given(uri))))


def _given(uri: str) -> dict[str, Any]:
    """Return the parameters, with those of the environment that matter here."""
    given: dict[str, Any] = conninfo_to_dict(uri)
    names = {"host": "PGHOST", "hostaddr": "PGHOSTADDR", "port": "PGPORT", "service": "PGSERVICE",
             "target_session_attrs": "PGTARGETSESSIONATTRS"}  # fmt: skip
    for key, name in names.items():
        given[key] = given.get(key) or os.environ.get(name) or None
    return given


def _at(hosts: list[_Host], given: dict[str, Any]) -> str:
    """Return the connection string with these hosts."""
    fields = zip(_HOST_FIELDS, zip(*hosts, strict=True), strict=True)
    own = {field: ",".join(values) if any(values) else None for field, values in fields}
    return make_conninfo("", **given | own)


def _hosts(given: dict[str, Any]) -> list[_Host]:
    """Return host, address and port of each host; none if their numbers do not fit together."""
    lists = [str(given[field] or "").split(",") for field in _HOST_FIELDS]
    number = max(len(lists[0]), len(lists[1]))
    lists = [each * number if len(each) == 1 else each for each in lists]
    return list(zip(*lists, strict=True)) if {len(each) for each in lists} == {number} else []


def _hang_up(connection: psycopg.BaseConnection[Any]) -> None:
    """End a connection for whoever waits for its server, in any thread."""
    with (
        suppress(OSError, psycopg.Error),
        socket.socket(fileno=os.dup(connection.pgconn.socket)) as end,
    ):
        end.shutdown(socket.SHUT_RDWR)
