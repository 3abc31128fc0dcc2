"""Options and exit codes of the commands that build on the relay benchmark."""

import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from bench.cli import FAILURES, filesystem, workplace
from bench.cli import main as relay
from bench.database import Server, open_server
from bench.progress import log

WRONG, FAILED, MISSED = 1, 2, 3
"""Exit codes: mail was lost, doubled or altered; could not run; a limit was not kept."""

EXIT = "Exit code: 0 all well; 1 something was lost, duplicated or altered; 2 could not run; 3 "
HELP = {"show_default": True, "help_option_names": ["-h", "--help"]}


def relay_options(*names: str) -> Callable[[click.Command], click.Command]:
    """Give a command these options of bench/relay, as they are there."""

    def decorate(command: click.Command) -> click.Command:
        command.params += [p for p in relay.params if p.name in names]
        return command

    return decorate


@contextmanager
def failing() -> Iterator[None]:
    """Turn what can't be run into a line and an exit code; SIGTERM counts as Ctrl-C."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except FAILURES as error:
        log(f"bench: {error}")
        sys.exit(FAILED)
    except KeyboardInterrupt:
        log("bench: interrupted")
        sys.exit(FAILED)


def commands_of(given: Path | None) -> Path:
    """Return where smtpd, queued and queuectl are: as given, or beside this Python."""
    return given or Path(sys.executable).parent


def opened(uri: str | None, keep: bool = False, what: str = "") -> tuple[Path, Server, str]:
    """Return a directory, the server, and a line that says `what` is measured and where."""
    directory = workplace(keep)
    server = open_server(uri, directory)
    place = "given server" if uri else f"embedded, on {filesystem(directory)}"
    about = f"{what}PostgreSQL {server.version} ({place}), commits durable"
    log(about)
    return directory, server, about


def finish(problems: list[str], misses: list[str]) -> None:
    """Say what went wrong and what missed its limit, and exit accordingly."""
    for problem in problems:
        log(f"WRONG: {problem}")
    for miss in misses:
        log(f"MISSED: {miss}")
    sys.exit(WRONG if problems else MISSED if misses else 0)


def dump(value: Any) -> str:
    """Return the JSON that --json prints."""
    return json.dumps(value, indent=2)
