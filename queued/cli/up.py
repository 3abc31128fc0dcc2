"""`queuectl up`: the whole relay on this machine, for a first try and for development."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import click
import uvloop

from pgmta.command import EXIT_FAILURE, print_line, print_text, reporting
from pgmta.config.loader import load
from pgmta.errors import PgmtaError
from pgmta.postgres.embedded import DATABASE, OWNER, Server
from pgmta.postgres.folders import locked, make_parents, open_own
from pgmta.postgres.locate import DIRECTORY, INHERITED, resolve
from pgmta.service import Signals, first
from pgmta.shipped import shipped
from pgmta.store.migrate import migrate
from queued.cli.first_try import USER, make_certificate, make_user
from queued.config import QueuedConfig

_SMTPD = Path("etc/dev/smtpd.yaml")
_QUEUED = Path("etc/dev/queued.yaml")
_SUBMISSION = 2587  # port in the configuration
_GRACE = 45.0  # seconds for the daemons to drain
_READY = 30.0  # seconds for smtpd to greet


@click.command()
@click.option(
    "--smtpd",
    "smtpd_config",
    type=click.Path(dir_okay=False, path_type=Path),
    default=_SMTPD,
    show_default=True,
    help="Configuration of smtpd.",
)
@click.option(
    "--queued",
    "queued_config",
    type=click.Path(dir_okay=False, path_type=Path),
    default=_QUEUED,
    show_default=True,
    help="Configuration of queued.",
)
@click.option("--port", default=2525, show_default=True, help="Port of smtpd, for the hint.")
@click.option("--sink-port", default=2526, show_default=True, help="Port of the development sink.")
@reporting
def up(smtpd_config: Path, queued_config: Path, port: int, sink_port: int) -> None:
    """Run the database, smtpd, one queued and a development sink until Ctrl-C.

    With the default configuration smtpd also has TLS, and a submission port for one user.
    """
    first = smtpd_config == _SMTPD
    smtpd_config, queued_config = _or_shipped(smtpd_config), _or_shipped(queued_config)
    environment = load(queued_config, QueuedConfig).environment
    directory = environment.directory.resolve()
    with _only_one(directory) as held:
        uri = resolve(environment)
        migrate(uri)
        sink = directory / "sink"
        submission = _first_try(directory, uri) if first else []
        children = Children(
            {
                "sink": ["smtpd", "sink", "--port", str(sink_port), "--maildir", str(sink)],
                "queued": ["queued", "run", "-c", str(queued_config)],
                "smtpd": ["smtpd", "run", "-c", str(smtpd_config)],
            },
            {INHERITED: uri} if environment.database.uri else {DIRECTORY: str(directory)},
            held,
        )
        lines = [
            ("database", _database(environment.database.uri, directory)),
            ("smtpd", f"127.0.0.1:{port}, takes mail from this machine"),
            *(("smtpd", line) for line in submission[:1]),
            ("queued", f"delivers everything to 127.0.0.1:{sink_port}"),
            ("sink", f"127.0.0.1:{sink_port}, keeps what it gets in {sink}/new"),
        ]
        hints = [_hint(port), *submission[1:]]
        status = uvloop.run(_run(children, port, lines, hints))
    sys.exit(status)


def _or_shipped(config: Path) -> Path:
    """Return the file; if it is a default and does not exist, the one shipped with pgmta."""
    if config not in (_SMTPD, _QUEUED) or config.exists():
        return config
    return shipped("etc") / "dev" / config.name


@contextmanager
def _only_one(directory: Path) -> Iterator[int]:
    """Keep other `queuectl up` away from the folder; gives a descriptor for the children to hold.

    Where an earlier one was killed, wait until its children have ended. Raises PgmtaError.
    """
    make_parents(directory)
    own, held = open_own(directory / "up.lock"), open_own(directory / "up.children")
    try:
        if not locked(own):
            raise PgmtaError(f"another `queuectl up` works on {directory}")
        end, told = time.monotonic() + _GRACE, False
        while not locked(held):
            if time.monotonic() > end:
                raise PgmtaError(f"processes of an earlier `queuectl up` on {directory} do not end")
            if not told:
                print_line("waiting for the end of what an earlier `queuectl up` has left")
            told = True
            time.sleep(0.1)
        yield held
    finally:
        os.close(own)
        os.close(held)


def _database(uri: str | None, directory: Path) -> str:
    if uri:
        return "PostgreSQL as configured"
    server = Server(directory)
    command = ["psql", "-h", str(server.sockets), "-U", OWNER, DATABASE]
    return f"PostgreSQL in {server.data}: {shlex.join(command)}"


@dataclass
class Children:
    """The children of `up`: commands by name, additions to their environment, their lock."""

    commands: dict[str, list[str]]
    environment: dict[str, str]
    lock: int
    running: dict[str, asyncio.subprocess.Process] = field(default_factory=dict)

    async def start(self, name: str) -> asyncio.subprocess.Process:
        """Start one; it ends with us, because it sees the end of its standard input."""
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", *self.commands[name], "--attached",
            stdin=asyncio.subprocess.PIPE,
            env={**os.environ, **self.environment},
            pass_fds=[self.lock],
            start_new_session=True,  # Ctrl-C is ours: we stop them in order
        )  # fmt: skip
        self.running[name] = child
        return child


async def _run(
    children: Children, port: int, lines: list[tuple[str, str]], hints: list[str]
) -> int:
    signals = Signals()
    ended = asyncio.Event()
    waits: list[asyncio.Task[None]] = []

    async def wait(name: str, child: asyncio.subprocess.Process) -> None:
        status = await child.wait()
        if not signals.stop.is_set():
            print_line(f"{name} ended with status {status}", err=True)
        ended.set()

    try:
        for name in children.commands:
            child = await children.start(name)
            waits.append(asyncio.create_task(wait(name, child)))
        if await _greets(port, ended, signals.stop):
            for name, text in lines:
                print_line(f"{name:9} {text}")
            print_text("\nsend a first mail from another terminal, then look into the sink:\n")
            print_text("\nor, over TLS with a login:\n\n".join(f"  {hint}\n" for hint in hints))
            print_line("Ctrl-C stops all of it; the data stay.")
        await first(signals.stop, signals.reload, ended)  # SIGHUP: the terminal is gone
        if signals.reload.is_set():
            signals.stop.set()
        return 0 if signals.stop.is_set() else EXIT_FAILURE
    finally:
        signals.stop.set()
        for name in ("smtpd", "queued", "sink"):
            await _stop(children.running.get(name))
        if waits:
            await asyncio.wait(waits)


def _first_try(directory: Path, uri: str) -> list[str]:
    """Make certificate and user of the default configuration; return what to say about them."""
    certificate, password = make_certificate(directory), make_user(directory, uri)
    options = f'--ssl-reqd --cacert {certificate} --user "{USER}:$(cat {password})" '
    return [
        f"127.0.0.1:{_SUBMISSION}, takes mail of {USER} over TLS",
        _hint(_SUBMISSION, "localhost", options),
    ]


def _hint(port: int, host: str = "127.0.0.1", options: str = "") -> str:
    return (
        f"printf 'From: {USER}\\nSubject: first mail\\n\\nIt works.\\n' | curl -sS --crlf {options}"
        f"smtp://{host}:{port} --mail-from me@example.org --mail-rcpt you@example.com -T -"
    )


async def _greets(port: int, ended: asyncio.Event, stop: asyncio.Event) -> bool:
    try:
        async with asyncio.timeout(_READY):
            while not (ended.is_set() or stop.is_set()):
                try:
                    reader, writer = await asyncio.open_connection("127.0.0.1", port)
                    greeting = await reader.readline()
                    writer.close()
                    return greeting.startswith(b"220")
                except OSError:
                    await first(ended, stop, timeout=0.05)
    except TimeoutError:
        raise PgmtaError(f"smtpd does not greet on port {port}") from None
    return False


async def _stop(child: asyncio.subprocess.Process | None) -> None:
    if child is None or child.returncode is not None:
        return
    child.terminate()
    try:
        async with asyncio.timeout(_GRACE):
            await child.wait()
    except TimeoutError:
        child.kill()
        await child.wait()
