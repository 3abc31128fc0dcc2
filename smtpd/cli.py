"""The command `smtpd`.

The master is not here: it imports less (`smtpd.process.master`). `run` checks the file, and
writes a plan for the master.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import uvloop

from pgmta import logs, signals
from pgmta.command import (
    ERROR,
    any_login_option,
    attached_option,
    config_option,
    print_line,
    reporting,
    version_option,
)
from pgmta.config.loader import load, mistakes, placed
from pgmta.console.error_lines import ErrorLinesGroup
from pgmta.errors import ConfigError, FormerDatabase
from pgmta.postgres.locate import absence, resolve
from smtpd.config import SmtpdConfig
from smtpd.process import privileges
from smtpd.process.plan import make_plan, write_plan
from smtpd.process.plan_process import PLAN_OPTION
from smtpd.process.risks import container_gateway, risks
from smtpd.process.sockets import collisions
from smtpd.recipients.recipient_file import check as check_recipients

if TYPE_CHECKING:
    from pgmta.postgres.link import Link

_CONFIG_NAME = "smtpd.yaml"
_SIGNAL_LOOK_INTERVAL_S = 0.1
_ANSWER_TIMEOUT_S = 5.0  # for PostgreSQL
_NAMED_USERS = 20  # in the message of a check


plan_option = click.option(
    PLAN_OPTION,
    "descriptor",
    type=int,
    required=True,
    hidden=True,
    help="Where the master reads what it has to do.",
)


@click.group(cls=ErrorLinesGroup)
@version_option("smtpd")
def main() -> None:
    """Take mail by SMTP into the queue."""


@main.command()
@config_option(_CONFIG_NAME)
@click.option("--at-start", is_flag=True, hidden=True, help="A daemon starts and waits for it.")
@any_login_option
@reporting
def check(config: Path, at_start: bool, any_login: bool) -> None:
    """Check a configuration file; exit 2 with its mistakes, or exit 0.

    This also reads the certificates, imports the hooks that the file names, and makes their
    handlers. Warnings name options that open more than they should.

    The command logs in to the database, and looks at the role of the login and at the schema. A
    login that PostgreSQL refuses, or that lacks its role, is a mistake. A database that is away, or
    of another version, is none: a warning says that it was not checked.
    """
    settings = load(config, SmtpdConfig)
    _check_system(settings, config)
    warnings = risks(settings, container_gateway())
    warnings += _check_certificates(settings, config)
    warnings += uvloop.run(_check_hooks(settings, config))
    if not any_login and (not at_start or settings.uses_auth):
        try:
            warnings += uvloop.run(_check_database(settings, config))
        except ConfigError:
            if not at_start:  # at the start the processes log the problem repeatedly, and wait
                raise
    for warning in warnings:
        print_line(f"warning: {placed(config, warning)}", err=True)
    print_line(f"{config}: ok")


def _check_system(settings: SmtpdConfig, path: Path) -> None:
    """Check what needs no other process: listeners, user, files of recipients."""
    problems = collisions(settings.listen)
    if reason := privileges.problem(settings):
        problems.append((("user",), reason))
    if problems:
        raise mistakes(path, problems)
    check_recipients(path, settings.relay)


def _check_here(settings: SmtpdConfig, path: Path) -> list[str]:
    """Load what names no module, and return the warnings."""
    found = risks(settings, container_gateway())
    if settings.uses_tls:
        found += _check_certificates(settings, path)
    return [placed(path, text) for text in found]


def _check_apart(path: Path) -> list[str]:
    """Load hooks and users in a process that ends: they may do anything, and write no plan.

    Return the warnings. A signal to stop ends both processes, because a handler may take a minute.
    """
    command = [sys.executable, "-P", "-m", "smtpd", "check", "--at-start", "-c", str(path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:  # noqa: S603
        while True:
            try:
                _, errors = process.communicate(timeout=_SIGNAL_LOOK_INTERVAL_S)
                break
            except subprocess.TimeoutExpired:
                if signals.stop_came():
                    process.kill()
                    sys.exit(0)  # a process that a hook started may hold the pipes open
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
    privileges.give_up(settings)  # before code of hooks runs
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
    from pgmta import daemon_role  # not at the top, because the master never needs it
    from pgmta.store.accounts.logins import LoginStore

    names: list[str] = []

    async def look(link: Link, _: str) -> None:
        if settings.uses_auth:
            names.extend(await LoginStore(link).unbound(_NAMED_USERS))

    if reason := await daemon_role.SMTPD.unchecked(
        path, settings.environment, look, _ANSWER_TIMEOUT_S
    ):
        return [f"the database was not checked: {reason}"]
    return [f"user {name}: `senders: any` lets the user send from any address, "
            "and queued sign by any key" for name in names]  # fmt: skip


@main.command()
@config_option(_CONFIG_NAME)
@attached_option
@plan_option
@reporting
def run(config: Path, attached: bool, descriptor: int) -> None:
    """Take mail until SIGTERM or SIGINT; SIGHUP reads the file again."""
    with signals.defaults():
        settings = load(config, SmtpdConfig)
        _check_system(settings, config)
        warnings = [] if settings.needs_process_check else _check_here(settings, config)
    if settings.needs_process_check:
        warnings = _check_apart(config)
    logs.configure(settings.log, daemon="smtpd")
    for warning in warnings:
        logs.get("master").warning("configuration", reason=warning)
    if reason := absence(settings.environment):
        logs.get("master").warning("no database yet", reason=reason)
    write_plan(descriptor, make_plan(config, settings, [], attached=attached))


@main.command(hidden=True)
@click.option("-c", "config", type=click.Path(path_type=Path), required=True, help="The file.")
@plan_option
@reporting
def reread(config: Path, descriptor: int) -> None:
    """Read the file for the master; its log has the mistakes."""
    try:
        settings = load(config, SmtpdConfig)
        warnings = [placed(config, risk) for risk in risks(settings, container_gateway())]
        write_plan(descriptor, make_plan(config, settings, warnings))
    except ConfigError as error:
        write_plan(descriptor, error)


@main.command(hidden=True)
@config_option(_CONFIG_NAME)
@click.option("--descriptors", required=True, help="Listening sockets, in the order of `listen`.")
@reporting
def serve(config: Path, descriptors: str) -> None:
    """Serve inherited sockets; the master starts this."""
    settings = load(config, SmtpdConfig)
    logs.configure(settings.log, daemon="smtpd")
    from smtpd.process.serving_process import serve as serve_sockets
    from smtpd.process.supervisor import FORMER_DATABASE
    from smtpd.tls.contexts import ContextSet

    tls = ContextSet(settings).load(config)
    privileges.give_up(settings)
    from pgmta import daemon_role

    uri = resolve(settings.environment, daemon_role.SMTPD.group)
    sockets = [int(part) for part in descriptors.split(",")]
    try:
        uvloop.run(serve_sockets(settings, config, uri, sockets, tls))
    except FormerDatabase:
        sys.exit(FORMER_DATABASE)  # the master prints the reason


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

    logs.keep_off_stdout()  # where the sink prints its mail
    uvloop.run(serve_sink(address, port, maildir, page_port, attached=attached))
