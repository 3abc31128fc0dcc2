"""The command: options, the order of the runs, the exit code."""

import atexit
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

import click
import psycopg

from bench.daemons import DaemonError
from bench.database import DatabaseError, Server, open_server
from bench.helper import HelperError
from bench.phases import Options, Result, measure, selftest
from bench.progress import log
from bench.report import as_json, table

FAILURES = (
    DaemonError,
    DatabaseError,
    HelperError,
    OSError,
    psycopg.Error,
    subprocess.SubprocessError,
)


def workplace(keep: bool) -> Path:
    """Make a temporary directory; at exit it is removed unless it is to be kept.

    At exit, because the embedded server in it stops at exit too. The server stops first, because
    the function that is registered last runs first.
    """
    directory = Path(tempfile.mkdtemp(prefix="pgmta-bench-"))
    directory.chmod(0o755)  # as root, PostgreSQL runs as another user
    if keep:
        atexit.register(log, f"kept: {directory}")
    else:
        atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


def filesystem(directory: Path) -> str:
    """Return the type of the file system the directory is on."""
    best, kind = "", "?"
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, point, this = line.split()[:3]
        if len(point) >= len(best) and directory.is_relative_to(point):
            best, kind = point, this
    return kind


def terminated(signum: int, frame: FrameType | None) -> None:
    """Handle SIGTERM as Ctrl-C."""
    raise KeyboardInterrupt


def _describe(options: Options, server: Server | None, directory: Path, own: bool) -> str:
    text = (
        f"{options.messages} messages of {options.size} bytes, "
        f"{options.recipients} recipient{'s' if options.recipients > 1 else ''} each, "
        f"{options.sessions} sessions {'kept' if options.reuse else 'of one message'}, "
        f"{len(os.sched_getaffinity(0))} cores"
    )
    if server:
        where = f"{directory} ({filesystem(directory)})" if own else "given server"
        text += f"; PostgreSQL {server.version} in {where}, commits durable"
    return text


def _run(
    phases: list[str], options: Options, runs: int, uri: str | None
) -> tuple[str, list[Result]]:
    results: list[Result] = []
    directory = workplace(options.keep)
    server = None if phases == ["selftest"] else open_server(uri, directory)
    about = _describe(options, server, directory, uri is None)
    log(about)
    for turn in range(runs):
        if runs > 1:
            log(f"run {turn + 1} of {runs}")
        for phase in phases:
            if server is None:
                results.append(selftest(options, directory))
            else:
                results.append(measure(phase, options, directory, server))
    return about, results


@click.command(context_settings={"show_default": True, "help_option_names": ["-h", "--help"]})
@click.option("--messages", default=10000, type=click.IntRange(1), help="Messages for each phase.")
@click.option("--sessions", default=20, type=click.IntRange(1), help="SMTP sessions at once.")
@click.option("--size", default=4096, type=click.IntRange(16), help="Bytes of body.")
@click.option("--recipients", default=1, type=click.IntRange(1), help="Recipients per message.")
@click.option("--domains", default=1, type=click.IntRange(1), help="Domains of the recipients.")
@click.option("--reuse/--no-reuse", default=True, help="Keep sessions, or one message in each.")
@click.option("--processes", type=click.IntRange(1), help="smtpd processes  [default: smtpd's own]")
@click.option("--workers", default=1, type=click.IntRange(1), help="queued processes.")
@click.option("--backlog", default=0, type=click.IntRange(0), help="Other rows, for a dead host.")
@click.option("--rate", default=0.0, help="Messages per second, evenly; 0: as fast as possible.")
@click.option("--uri", help="A PostgreSQL server to use, instead of a new embedded one.")
@click.option("--phase", default="both", type=click.Choice(["ingest", "relay", "both"]))
@click.option("--runs", default=1, type=click.IntRange(1), help="Repeat; shows min, median, max.")
@click.option("--stall", default=20.0, help="Give up if nothing moves for this many seconds.")
@click.option("--sample", default=0.0, help="Seconds between samples of claim time and sizes.")
@click.option("--json", "json_", is_flag=True, help="Print JSON.")
@click.option("--keep", is_flag=True, help="Keep the directory, and databases made at --uri.")
@click.option("--selftest", "alone", is_flag=True, help="Source straight into sink, no product.")
@click.option(
    "--commands",
    type=click.Path(exists=True, file_okay=False, path_type=Path, resolve_path=True),
    help="Where smtpd, queued and queuectl are  [default: beside this Python]",
)
def main(
    uri: str | None,
    phase: str,
    runs: int,
    json_: bool,
    alone: bool,
    commands: Path | None,
    **rest: Any,
) -> None:
    """Measure how fast mail goes into the queue, and through it to the next hop.

    Starts database, smtpd and queued on an empty directory, sends, receives and compares. CPU of
    source and sink is shown apart: they use the same cores. Exit code: 0 all well; 1 something
    was lost, duplicated or altered; 2 could not start.
    """
    signal.signal(signal.SIGTERM, terminated)
    options = Options(commands=commands or Path(sys.executable).parent, **rest)
    phases = ["ingest", "relay"] if phase == "both" else [phase]
    try:
        about, results = _run(["selftest"] if alone else phases, options, runs, uri)
    except FAILURES as error:
        log(f"bench: {error}")
        sys.exit(2)
    except KeyboardInterrupt:
        log("bench: interrupted")
        sys.exit(2)
    if json_:
        settings = asdict(options) | {"commands": str(options.commands), "about": about}
        click.echo(as_json(settings, results))
    else:
        click.echo(f"{about}\n\n{table(results)}\n")
    for result in results:
        for note in result.notes:
            log(f"note, {result.phase}: {note}")
        for problem in result.problems:
            log(f"WRONG, {result.phase}: {problem}")
    failed = any(result.problems for result in results)
    if not json_:
        click.echo("NOT all as sent, see above" if failed else "every recipient once, all as sent")
    sys.exit(1 if failed else 0)
