"""`queuectl up`: the whole relay on this machine, for a first try and for development."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import click
import uvloop

from queued.command import EXIT_FAILURE, print_line, print_text, reporting
from queued.config.loader import load
from queued.config.queued import QueuedConfig
from queued.database import INHERITED, resolve
from queued.errors import PosternError
from queued.service import Signals, first
from queued.store.migrate import migrate

_GRACE = 45.0  # seconds for the daemons to drain
_READY = 30.0  # seconds for smtpd to greet


@click.command()
@click.option(
    "--smtpd",
    "smtpd_config",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("etc/dev/smtpd.yaml"),
    show_default=True,
    help="Configuration of smtpd.",
)
@click.option(
    "--queued",
    "queued_config",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("etc/dev/queued.yaml"),
    show_default=True,
    help="Configuration of queued.",
)
@click.option("--port", default=2525, show_default=True, help="Port of smtpd, for the hint.")
@click.option("--sink-port", default=2526, show_default=True, help="Port of the development sink.")
@reporting
def up(smtpd_config: Path, queued_config: Path, port: int, sink_port: int) -> None:
    """Run the database, smtpd, one queued and a development sink until Ctrl-C."""
    environment = load(queued_config, QueuedConfig).environment
    uri = resolve(environment)
    migrate(uri)
    sink = environment.directory / "sink"
    commands = {
        "sink": ["smtpd", "sink", "--port", str(sink_port), "--maildir", str(sink)],
        "queued": ["queued", "run", "-c", str(queued_config)],
        "smtpd": ["smtpd", "run", "-c", str(smtpd_config)],
    }
    database = (
        "as configured" if environment.database.uri else str(environment.directory / "postgres")
    )
    lines = [
        ("database", f"PostgreSQL {database}"),
        ("smtpd", f"127.0.0.1:{port}, takes mail from this machine"),
        ("queued", f"delivers everything to 127.0.0.1:{sink_port}"),
        ("sink", f"127.0.0.1:{sink_port}, keeps what it gets in {sink}/new"),
    ]
    status = uvloop.run(_run(commands, uri, port, lines))
    sys.exit(status)


async def _run(
    commands: dict[str, list[str]], uri: str, port: int, lines: list[tuple[str, str]]
) -> int:
    signals = Signals()
    children: dict[str, asyncio.subprocess.Process] = {}
    ended = asyncio.Event()
    waits: list[asyncio.Task[None]] = []

    async def wait(name: str) -> None:
        status = await children[name].wait()
        if not signals.stop.is_set():
            print_line(f"{name} ended with status {status}", err=True)
        ended.set()

    try:
        for name, command in commands.items():
            children[name] = await asyncio.create_subprocess_exec(
                sys.executable, "-m", *command,
                env={**os.environ, INHERITED: uri},
                start_new_session=True,  # Ctrl-C is ours: we stop them in order
            )  # fmt: skip
            waits.append(asyncio.create_task(wait(name)))
        if await _greets(port, ended, signals.stop):
            for name, text in lines:
                print_line(f"{name:9} {text}")
            print_text("\nsend a first mail from another terminal, then look into the sink:\n")
            print_text(f"  {_hint(port)}\n")
            print_line("Ctrl-C stops all of it; the data stay.")
        await first(signals.stop, signals.reload, ended)  # SIGHUP: the terminal is gone
        if signals.reload.is_set():
            signals.stop.set()
        return 0 if signals.stop.is_set() else EXIT_FAILURE
    finally:
        signals.stop.set()
        for name in ("smtpd", "queued", "sink"):
            await _stop(children.get(name))
        if waits:
            await asyncio.wait(waits)


def _hint(port: int) -> str:
    return (
        "printf 'Subject: first mail\\n\\nIt works.\\n' | curl -sS --crlf "
        f"smtp://127.0.0.1:{port} --mail-from me@example.org --mail-rcpt you@example.com -T -"
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
        raise PosternError(f"smtpd does not greet on port {port}") from None
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
