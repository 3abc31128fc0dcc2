"""The command `smtpd`.

Each command imports its own part, so that the master holds no memory for sessions and handlers.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import uvloop

from pgmta import logs, signals
from pgmta.command import (
    ERROR,
    attached_option,
    config_option,
    print_line,
    reporting,
    version_option,
)
from pgmta.config.loader import load, mistakes
from pgmta.console.error_lines import ErrorLinesGroup
from pgmta.errors import ConfigError, FormerDatabase
from pgmta.postgres.embedded.database import SMTPD
from pgmta.postgres.locate import resolve
from smtpd.config import SmtpdConfig
from smtpd.process import privileges
from smtpd.process.risks import container_gateway, risks
from smtpd.process.sockets import collisions
from smtpd.recipients.recipient_file import check as check_recipients

if TYPE_CHECKING:
    from pgmta.postgres.link import Link

_FILE = "smtpd.yaml"
_LOOK = 0.1  # seconds between looks for a signal
_ANSWER = 5.0  # seconds for an answer of PostgreSQL
_NAMED = 20  # users whom a check names


@click.group(cls=ErrorLinesGroup)
@version_option("smtpd")
def main() -> None:
    """Take mail by SMTP into the queue."""


@main.command()
@config_option(_FILE)
@click.option("--at-start", is_flag=True, hidden=True, help="A daemon starts and waits for it.")
@reporting
def check(config: Path, at_start: bool) -> None:
    """Check a configuration file; exit 2 with its mistakes, or exit 0.

    This also reads the certificates, imports the hooks that the file names, and makes their
    handlers. Warnings name options that open more than they should.

    The command logs in to the database, and looks at the role of the login and at the schema. A
    login that PostgreSQL refuses, or that lacks its role, is a mistake. A database that is away, or
    of another version, is none: a warning says that it was not checked.
    """
    settings = load(config, SmtpdConfig)
    _check_system(settings, config)
    warnings = _warnings(settings)
    warnings += _check_certificates(settings, config)
    warnings += uvloop.run(_check_hooks(settings, config))
    if not at_start or settings.uses_auth:
        try:
            warnings += uvloop.run(_check_database(settings, config))
        except ConfigError:
            if not at_start:  # else the processes log it again and again, and wait
                raise
    for warning in warnings:
        print_line(f"warning: {config}: {warning}", err=True)
    print_line(f"{config}: ok")


def _warnings(settings: SmtpdConfig) -> list[str]:
    """Return what an operator should know, and what the file alone says."""
    warnings = risks(settings, container_gateway())
    if settings.environment.database.where:
        warnings.append("environment.database.where is ignored: only queued uses it")
    return warnings


def _check_system(settings: SmtpdConfig, path: Path) -> None:
    """Check what needs no other process: listeners, user, files of recipients."""
    problems = collisions(settings.listen)
    if reason := privileges.problem(settings):
        problems.append((("user",), reason))
    if problems:
        raise mistakes(path, problems)
    check_recipients(path, settings.relay)


def _check_apart(path: Path) -> list[str]:
    """Load hooks and certificates in a process that ends: the master needs none of them.

    Return the warnings. A signal to stop ends both processes, because a handler may take a minute.
    """
    command = [sys.executable, "-P", "-m", "smtpd", "check", "--at-start", "-c", str(path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:  # noqa: S603
        while True:
            try:
                _, errors = process.communicate(timeout=_LOOK)
                break
            except subprocess.TimeoutExpired:
                if signals.stop_came():
                    process.kill()
    if signals.stop_came():
        sys.exit(0)
    if process.returncode:
        ended = f"{path}: hooks: a module ends the process that imports it ({process.returncode})"
        raise ConfigError([line.removeprefix(ERROR) for line in errors.splitlines()] or [ended])
    begin = "warning: "
    return [line.removeprefix(begin) for line in errors.splitlines() if line.startswith(begin)]


def _check_certificates(settings: SmtpdConfig, path: Path) -> list[str]:
    from smtpd.tls.contexts import ContextSet

    contexts = ContextSet(settings).load(path)
    privileges.give_up(settings)  # before hooks
    if reason := privileges.shut_out(settings):
        raise mistakes(path, [(("user",), reason)])
    return [*contexts.warnings(), *contexts.unreadable()]


async def _check_hooks(settings: SmtpdConfig, path: Path) -> list[str]:
    from smtpd.hooks.hook_set import HookSet

    hooks = await HookSet().load_hooks(settings, path)
    await hooks.stop(0.0)
    return hooks.warnings


async def _check_database(settings: SmtpdConfig, path: Path) -> list[str]:
    """Return the users who may send from any address, or why the database was not checked.

    Raises ConfigError if PostgreSQL refuses the login, or if the login lacks its role.
    """
    from pgmta import daemon_role  # the master does without
    from pgmta.store.accounts.logins import LoginStore

    names: list[str] = []

    async def look(link: Link, _: str) -> None:
        if settings.uses_auth:
            names.extend(await LoginStore(link).unbound(_NAMED))

    if reason := await daemon_role.SMTPD.unchecked(path, settings.environment, look, _ANSWER):
        return [f"the database was not checked: {reason}"]
    return [f"user {name}: `senders: any` lets the user send from any address, "
            "and queued sign by any key" for name in names]  # fmt: skip


@main.command()
@config_option(_FILE)
@attached_option
@reporting
def run(config: Path, attached: bool) -> None:
    """Take mail until SIGTERM or SIGINT; SIGHUP reads the file again."""
    settings = load(config, SmtpdConfig)
    _check_system(settings, config)
    if settings.needs_check:
        warnings = _check_apart(config)
    else:
        warnings = [f"{config}: {text}" for text in _warnings(settings)]
    logs.configure(settings.log, daemon="smtpd")
    for warning in warnings:
        logs.get("master").warning("configuration", reason=warning)
    uri = resolve(settings.environment, SMTPD)
    from smtpd.process.master import Master

    # not uvloop: a child that it forks hangs in hooks of os.register_at_fork, as OpenTelemetry has
    asyncio.run(Master(config, settings, uri).run(attached=attached))


@main.command(hidden=True)
@config_option(_FILE)
@click.option("--descriptors", required=True, help="Listening sockets, in the order of `listen`.")
@reporting
def serve(config: Path, descriptors: str) -> None:
    """Serve inherited sockets; the master starts this."""
    settings = load(config, SmtpdConfig)
    logs.configure(settings.log, daemon="smtpd")
    from smtpd.process.keeper import FORMER
    from smtpd.process.process import serve as serve_sockets
    from smtpd.tls.contexts import ContextSet

    tls = ContextSet(settings).load(config)
    privileges.give_up(settings)
    uri = resolve(settings.environment, SMTPD)
    sockets = [int(part) for part in descriptors.split(",")]
    try:
        uvloop.run(serve_sockets(settings, config, uri, sockets, tls))
    except FormerDatabase:
        sys.exit(FORMER)  # the master says it


@main.command()
@click.option("--address", default="127.0.0.1", show_default=True, help="Where to listen.")
@click.option("--port", default=2526, show_default=True, help="TCP port.")
@click.option(
    "--maildir",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("var/sink"),
    show_default=True,
    help="Where to keep what comes.",
)
@click.option("--page-port", type=int, help="Show the mail on this TCP port of 127.0.0.1.")
@attached_option
@reporting
def sink(address: str, port: int, maildir: Path, page_port: int | None, attached: bool) -> None:
    """Catch all mail in a Maildir: a next hop for development only."""
    from smtpd.sink.sink import serve as serve_sink

    uvloop.run(serve_sink(address, port, maildir, page_port, attached=attached))
