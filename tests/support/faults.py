"""Faults, each a context: it begins, lasts, and ends with everything as it was."""

from __future__ import annotations

import os
import random
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

import psutil
import psycopg

from tests.support.daemons import Daemon
from tests.support.nexthop import Do, Script
from tests.support.rig import FAULTY, GOOD, Rig
from tests.support.waiting import take_time

Fault = Callable[[Rig, random.Random], Iterator[str]]
_POINTS = ("connect", "EHLO", "MAIL", "RCPT", "DATA", "content", "end of data", "idle")
_REPLIES = ("MAIL", "RCPT", "DATA", "end of data")
FAULTS: dict[str, Fault] = {}


def fault(function: Fault) -> Fault:
    """Enter it into the list, by its name."""
    FAULTS[function.__name__.replace("_", " ")] = function
    return function


def begin(name: str, rig: Rig, chance: random.Random) -> AbstractContextManager[str]:
    """The fault as a context; its value says what exactly is done."""
    return contextmanager(FAULTS[name])(rig, chance)


def _child(rig: Rig, chance: random.Random) -> psutil.Process | None:
    children: list[psutil.Process] = []
    with suppress(psutil.NoSuchProcess):  # it may be about to end
        children = rig.smtpd.children() if rig.smtpd.alive else []
    return chance.choice(children) if children else None


def _send(pid: int, number: int) -> None:
    """Send a signal; another fault of the round may have ended the process already."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _pause(pid: int) -> Iterator[str]:
    _send(pid, signal.SIGSTOP)
    try:
        yield str(pid)
    finally:
        _send(pid, signal.SIGCONT)


def _kill(rig: Rig, daemon: Daemon) -> Iterator[str]:
    daemon.kill()
    rig.ended[daemon] = False
    yield daemon.name


def _end(rig: Rig, daemon: Daemon) -> Iterator[str]:
    daemon.signal(signal.SIGTERM)
    rig.ended.setdefault(daemon, True)
    yield daemon.name


@fault
def smtpd_child_killed(rig: Rig, chance: random.Random) -> Iterator[str]:
    if child := _child(rig, chance):
        with suppress(psutil.NoSuchProcess):
            child.kill()
    yield ""


@fault
def smtpd_child_told_to_end(rig: Rig, chance: random.Random) -> Iterator[str]:
    if child := _child(rig, chance):
        with suppress(psutil.NoSuchProcess):
            child.terminate()
    yield ""


@fault
def smtpd_child_stopped(rig: Rig, chance: random.Random) -> Iterator[str]:
    if child := _child(rig, chance):
        yield from _pause(child.pid)
    else:
        yield ""


@fault
def smtpd_reloaded(rig: Rig, chance: random.Random) -> Iterator[str]:
    rig.smtpd.signal(signal.SIGHUP)
    yield ""


@fault
def smtpd_killed(rig: Rig, chance: random.Random) -> Iterator[str]:
    yield from _kill(rig, rig.smtpd)


@fault
def smtpd_restarted(rig: Rig, chance: random.Random) -> Iterator[str]:
    yield from _end(rig, rig.smtpd)


@fault
def queued_killed(rig: Rig, chance: random.Random) -> Iterator[str]:
    yield from _kill(rig, chance.choice(rig.workers))


@fault
def queued_restarted(rig: Rig, chance: random.Random) -> Iterator[str]:
    yield from _end(rig, chance.choice(rig.workers))


@fault
def queued_stopped(rig: Rig, chance: random.Random) -> Iterator[str]:
    yield from _pause(chance.choice(rig.workers).pid)


@fault
def queued_stopped_longer_than_its_leases(rig: Rig, chance: random.Random) -> Iterator[str]:
    for text in _pause(chance.choice(rig.workers).pid):
        take_time(7)
        yield text


@fault
def queued_reloaded(rig: Rig, chance: random.Random) -> Iterator[str]:
    chance.choice(rig.workers).signal(signal.SIGHUP)
    yield ""


@fault
def sessions_ended(rig: Rig, chance: random.Random) -> Iterator[str]:
    """Some, again and again: one is in its commit."""
    share = chance.choice([0.1, 0.5, 1.0])
    done = threading.Event()

    def run() -> None:
        while not done.is_set():
            with suppress(psycopg.Error), rig.admin() as db:
                db.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE application_name LIKE 'pgmta%%' AND random() < %s",
                    (share,),
                )
            done.wait(0.2)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield f"{share:.0%}"
    finally:
        done.set()
        thread.join()


@fault
def backend_killed(rig: Rig, chance: random.Random) -> Iterator[str]:
    """The postmaster ends all others and recovers."""
    with suppress(psycopg.Error), rig.admin() as db:
        row = db.execute(
            "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'pgmta%'"
            " ORDER BY random() LIMIT 1"
        ).fetchone()
        if row:
            _send(row[0], signal.SIGKILL)
    yield ""


@fault
def backend_stopped(rig: Rig, chance: random.Random) -> Iterator[str]:
    pid = 0
    with suppress(psycopg.Error), rig.admin() as db:
        row = db.execute(
            "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'pgmta%'"
            " ORDER BY random() LIMIT 1"
        ).fetchone()
        pid = row[0] if row else 0
    if pid:
        yield from _pause(pid)
    else:
        yield ""


@fault
def server_crashed(rig: Rig, chance: random.Random) -> Iterator[str]:
    rig.server.crash()
    try:
        yield ""
    finally:
        rig.start_server()


@fault
def database_read_only(rig: Rig, chance: random.Random) -> Iterator[str]:
    rig.change("ALTER SYSTEM SET default_transaction_read_only = on")
    try:
        yield ""
    finally:
        rig.reset("default_transaction_read_only")


@fault
def commits_without_answer(rig: Rig, chance: random.Random) -> Iterator[str]:
    """They wait for a standby, and have happened: their sessions end before they can say so."""
    how = chance.choice(["ended", "killed"])
    rig.change("ALTER SYSTEM SET synchronous_standby_names = 'missing'")
    try:
        yield how
        with suppress(psycopg.Error), rig.admin() as db:
            waiting = "FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
            if how == "ended":
                db.execute(f"SELECT pg_terminate_backend(pid) {waiting}".encode())
            elif row := db.execute(f"SELECT pid {waiting} LIMIT 1".encode()).fetchone():
                _send(row[0], signal.SIGKILL)
    finally:
        rig.reset("synchronous_standby_names")


@fault
def tables_locked(rig: Rig, chance: random.Random) -> Iterator[str]:
    table = chance.choice(["queue", "messages", "attempts", "message_chunks"])
    mode = chance.choice(["ACCESS EXCLUSIVE", "EXCLUSIVE", "SHARE"])
    entered = False
    with suppress(psycopg.Error), rig.admin() as db, db.transaction():
        db.execute(f"LOCK TABLE {table} IN {mode} MODE".encode())
        entered = True
        yield f"{table} {mode}"
    if not entered:
        yield "no lock"


@fault
def disk_full(rig: Rig, chance: random.Random) -> Iterator[str]:
    """Needs a separate file system, and so root."""
    ballast = rig.data / "ballast"
    try:
        with ballast.open("wb") as file, suppress(OSError):
            os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(rig.data).free)
            while file.write(bytes(4096)):
                file.flush()
        yield ""
    finally:
        ballast.unlink()
        rig.start_server()


def _scripted(rig: Rig, script: Script, text: str) -> Iterator[str]:
    rig.script(rig.faulty, script)
    try:
        yield text
    finally:
        rig.script(rig.faulty, None)
        rig.faulty.drop_connections()


@fault
def hop_hangs(rig: Rig, chance: random.Random) -> Iterator[str]:
    where = chance.choice(_POINTS)
    yield from _scripted(rig, lambda point, *_: Do(hang=True) if point == where else None, where)


@fault
def hop_hangs_up(rig: Rig, chance: random.Random) -> Iterator[str]:
    where = chance.choice(_POINTS)
    yield from _scripted(rig, lambda point, *_: Do(drop=True) if point == where else None, where)


@fault
def hop_says_no(rig: Rig, chance: random.Random) -> Iterator[str]:
    where, share = chance.choice(_REPLIES), chance.choice([0.3, 1.0])
    line = chance.choice(["450 4.2.0 Later", "421 4.3.2 Down", "550 5.7.1 Never"])
    own = random.Random(chance.random())
    yield from _scripted(
        rig,
        lambda point, *_: Do(line=line) if point == where and own.random() < share else None,
        f"{line} to {share:.0%} of {where}",
    )


@fault
def hop_down(rig: Rig, chance: random.Random) -> Iterator[str]:
    hop = chance.choice([rig.faulty, rig.good])
    hop.stop()
    try:
        yield FAULTY if hop is rig.faulty else GOOD
    finally:
        hop.start()
