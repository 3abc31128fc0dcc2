"""The cost of relays without mail: CPU time, wake-ups, memory, connections, commits; the start."""

import contextlib
import os
import re
import resource
import shutil
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import psutil
import psycopg

from bench.certificate import make_certificate
from bench.columns import aligned, number
from bench.cpu import members
from bench.daemons import Product
from bench.options import HELP_SETTINGS, commands_of, failing, finish, hardware, workplace
from bench.progress import log
from pgmta.postgres.embedded.embedded_server import DATABASE, EmbeddedServer

ENDED = "postgres: ended processes"
_AUXILIARY = re.compile(r"postgres: (?:[0-9.]+/main: )?([a-z]+(?: [a-z]+)*)")
COMMITS = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
SESSIONS = """
SELECT pid, application_name FROM pg_stat_activity
WHERE application_name LIKE 'pgmta %' AND backend_type = 'client backend'
"""


@dataclass
class Usage:
    """CPU seconds, wake-ups and MB of each part so far; and commits of the database."""

    at: float
    cpu: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    wakes: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    memory: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    processes: int = 0
    connections: int = 0
    commits: int = 0


class Relay:
    """One version of pgmta on a separate embedded server."""

    def __init__(self, name: str, commands: Path, directory: Path, tls: bool) -> None:
        self.name = name
        self.directory = directory
        self.server = EmbeddedServer(directory)
        self.uri = self.server.uri(DATABASE)
        self.product = Product(commands, directory, self.uri, [], embedded=True)
        self.start: dict[str, float] = {}
        self._roots: dict[str, list[int]] = {}
        self._tls = tls

    def run(self) -> None:
        """Start it."""
        self._roots["database"] = [self.product.start_database()]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.product.migrate()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.start["queuectl database migrate"] = _seconds(after) - _seconds(before)
        more: dict[str, Any] = {}
        if self._tls:
            certificate, key = make_certificate(self.directory, "pgmta")
            more["certificates"] = [{"certificate": str(certificate), "key": str(key)}]
        smtpd, _ = self.product.start_smtpd(1, more)
        self._roots["smtpd"] = [smtpd]
        self._roots["queued"] = self.product.start_queued(1, 25)
        postmaster = int((self.server.data / "postmaster.pid").read_text().split()[0])
        for part, roots in self._roots.items():
            self.start[part] = sum(_cpu(pid) for pid in members(roots))
        self._roots["postgres"] = [postmaster]

    def usage(self, *, memory: bool) -> Usage:
        """Return what it has used so far, and its memory if that is wanted: that takes long."""
        found = Usage(time.monotonic())
        with psycopg.connect(self.uri, autocommit=True, application_name="bench") as connection:
            names: dict[int, str] = dict(connection.execute(SESSIONS).fetchall())
            (found.commits,) = connection.execute(COMMITS).fetchone() or (0,)
            us = connection.info.backend_pid
        found.connections = len(names)
        for group, roots in self._roots.items():
            for pid in members(roots):
                if pid == us:
                    continue
                with contextlib.suppress(psutil.Error, OSError):
                    part = _part(group, pid, roots, names)
                    found.cpu[part] += _cpu(pid)
                    found.wakes[part] += psutil.Process(pid).num_ctx_switches().voluntary
                    found.processes += 1
                    if group == "postgres" and pid in roots:
                        times = psutil.Process(pid).cpu_times()
                        found.cpu[ENDED] += times.children_user + times.children_system
                    if memory:
                        found.memory[part] += psutil.Process(pid).memory_full_info().pss / (1 << 20)
        return found

    def end(self) -> None:
        """Stop it."""
        self.product.stop()


def _seconds(used: resource.struct_rusage) -> float:
    return used.ru_utime + used.ru_stime


def _cpu(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def _part(group: str, pid: int, roots: list[int], names: dict[int, str]) -> str:
    """Return the part of the relay that a process is."""
    if group != "postgres":
        return group if pid in roots else f"{group}, serving"
    if pid in roots:
        return "postgres: postmaster"
    if pid in names:
        return f"postgres: {names[pid].removeprefix('pgmta ')}"
    match = _AUXILIARY.match(" ".join(psutil.Process(pid).cmdline()))
    return f"postgres: {match[1]}" if match else "postgres: other"


@contextlib.contextmanager
def _running(places: list[tuple[str, Path]], tls: bool, keep: bool) -> Iterator[list[Relay]]:
    directory = workplace(keep)
    relays: list[Relay] = []
    try:
        for number, (name, commands) in enumerate(places, 1):
            place = directory / str(number)
            place.mkdir(mode=0o755)
            relay = Relay(name, commands, place, tls)
            relays.append(relay)
            relay.run()
        yield relays
    finally:
        for relay in relays:
            relay.end()
            if not keep:
                shutil.rmtree(relay.directory, ignore_errors=True)
        for relay in relays:  # a closed stderr leaves nothing running
            for note in relay.product.notes:
                log(f"note, {relay.name}: {note}")


def _rows(relays: list[Relay], before: list[Usage], after: list[Usage]) -> list[list[str]]:
    """Return the rows of the table: sums first, then each part."""
    pairs = list(zip(before, after, strict=True))

    def row(title: str, values: list[float | None]) -> list[str]:
        return [title, *("-" if value is None else number(value) for value in values)]

    def rates(kind: str, part: str, times: float) -> list[float | None]:
        found: list[float | None] = []
        for old, new in pairs:
            was, now = getattr(old, kind), getattr(new, kind)
            known = part in now and part in was
            rate = times * (now[part] - was[part]) / (new.at - old.at) if known else None
            found.append(rate)
        return found

    parts = sorted({part for _, new in pairs for part in new.cpu})
    sums = {name: name for name in ("", "smtpd", "queued", "postgres", "database")}
    rows = [["", *(relay.name for relay in relays)]]
    for group, title in sums.items():
        of_group = [part for part in parts if part.startswith(group)]
        total = [
            sum(filter(None, values))
            for values in zip(*(rates("cpu", part, 100) for part in of_group), strict=True)
        ]
        rows.append(row(f"% of a core{title and ', '}{title}", list(total)))
    for group, title in sums.items():
        sizes = [sum(mb for part, mb in new.memory.items() if part.startswith(group))
                 for _, new in pairs]  # fmt: skip
        rows.append(row(f"MB (PSS){title and ', '}{title}", list(sizes)))
    rows.append(row("processes", [new.processes for _, new in pairs]))
    rows.append(row("connections", [new.connections for _, new in pairs]))
    commits = [(new.commits - old.commits) / (new.at - old.at) for old, new in pairs]
    rows.append(row("commits/s", list(commits)))
    wakes = zip(*(rates("wakes", part, 1) for part in parts), strict=True)
    rows.append(row("wake-ups/s", [sum(filter(None, each)) for each in wakes]))
    started = dict.fromkeys(name for relay in relays for name in relay.start)
    rows += [
        row(f"start, CPU s, {name}", [relay.start.get(name) for relay in relays])
        for name in started
    ]
    rows += [row(f"  % {part}", rates("cpu", part, 100)) for part in parts]
    rows += [row(f"  wake-ups/s {part}", rates("wakes", part, 1)) for part in parts]
    rows += [row(f"  MB {part}", [new.memory.get(part) for _, new in pairs]) for part in parts]
    return rows


@click.command(context_settings=HELP_SETTINGS)
@click.option("--seconds", default=120.0, help="How long the relay is watched.")
@click.option("--rest", default=60.0, help="Seconds before that: looks are more frequent at first.")
@click.option("--tls/--no-tls", default=True, help="smtpd has a certificate.")
@click.option(
    "--commands",
    type=click.Path(exists=True, file_okay=False, path_type=Path, resolve_path=True),
    multiple=True,
    help="Where smtpd, queued and queuectl are; several run beside each other.  "
    "[default: beside this Python]",
)
@click.option("--keep", is_flag=True, help="Keep the directory of the run.")
def main(seconds: float, rest: float, tls: bool, commands: tuple[Path, ...], keep: bool) -> None:
    """Measure what a relay without mail takes: one smtpd process, one queued, embedded PostgreSQL.

    Several versions run at the same time, each on its own server: what slows the machine meets all
    of them. Exit code: 0 all well; 2 could not run.
    """
    places = [(str(path), path) for path in commands] or [("pgmta", commands_of(None))]
    with failing(), _running(places, tls, keep) as relays:
        log(f"{hardware()}, {os.getloadavg()[0]:.1f} load")
        time.sleep(rest)
        before = [relay.usage(memory=False) for relay in relays]
        time.sleep(seconds)
        after = [relay.usage(memory=True) for relay in relays]
        for relay in relays:
            relay.product.check()
        click.echo(aligned(_rows(relays, before, after), 8))
    finish([], [])
