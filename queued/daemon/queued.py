"""The command `queued`."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import click
import psycopg
import uvloop

from pgmta import logs
from pgmta.command import (
    any_login_option,
    attached_option,
    config_option,
    print_line,
    reporting,
    version_option,
)
from pgmta.config.loader import Problem, mistakes, placed
from pgmta.config.types import hint
from pgmta.config.yaml_file import Key, dotted
from pgmta.console.error_lines import ErrorLinesGroup
from pgmta.daemon_role import NO_QUEUE, QUEUED
from pgmta.errors import ConfigError, SchemaMismatch, StoreUnavailable
from pgmta.features import loaded
from pgmta.postgres.faults import outage
from pgmta.postgres.link import Link
from pgmta.service import ServiceManager, Signals, first, start_part
from pgmta.store.queue.conditions import case_hint, condition_problems
from pgmta.waiting import Waiting
from queued.config import QueuedConfig, read_config
from queued.daemon.daemon import Daemon
from queued.daemon.web import web
from queued.delivery.transports import parsers
from queued.signing.keyring import key_problems
from queued.worker.row_worker import is_rule

_RETRY_PAUSE_S = 0.5
_WHERE_KEY: Key = ("environment", "database", "where")


@click.group(cls=ErrorLinesGroup)
@version_option("queued")
def main() -> None:
    """Deliver mail from the queue."""


main.add_command(web)


@main.command()
@config_option("queued.yaml")
@any_login_option
@reporting
def check(config: Path, any_login: bool) -> None:
    """Check a configuration file; exit 2 with its mistakes, or exit 0.

    The command logs in to the database. It looks at the role of the login and at the schema, and
    PostgreSQL analyses each `where`. A login that PostgreSQL refuses, or that lacks its role, is a
    mistake. A database that is away, or of another version, is none: a warning says that it was not
    checked.
    """
    settings = read_config(config, parsers())
    if problems := key_problems(settings.signing):  # `queued run` goes on with the other keys
        raise mistakes(config, problems)
    conditions = _conditions(settings)

    async def analyse(_: Link, uri: str) -> None:
        await _check(config, uri, conditions, settings)
        # `queued run` goes on with what these lack
        if not any_login and (lacking := await _check_loops(config, uri, settings)):
            raise mistakes(config, lacking)

    reason = asyncio.run(
        QUEUED.unchecked(config, settings.environment, analyse, any_login=any_login)
    )
    for key, condition in conditions.items():
        if hint := case_hint(condition):
            print_line(f"warning: {placed(config, f'{dotted(key)}: {hint}')}", err=True)
    for note in settings.warnings:
        print_line(f"warning: {placed(config, note)}", err=True)
    if reason:
        what = "the database and the conditions were" if conditions else "the database was"
        print_line(f"warning: {config}: {what} not checked: {reason}", err=True)
    print_line(f"{config}: ok")


async def _check(path: Path, uri: str, conditions: dict[Key, str], settings: QueuedConfig) -> None:
    """Check the conditions. Raises ConfigError, and what `condition_problems` raises."""
    found = await condition_problems(uri, conditions, _stored(settings), QUEUED.group)
    names = {("workers", number, "where"): worker for number, worker in enumerate(settings.workers)}
    if found:
        raise mistakes(path, [
            (key, f"worker {names[key].name}: {reason}" if key in names else reason)
            for key, reason in found.items()
        ])  # fmt: skip


async def _check_loops(path: Path, uri: str, settings: QueuedConfig) -> list[Problem]:
    found: list[Problem] = []
    for each in loaded("named_loops"):
        found += await each.check(path, uri, settings)
    return found


def _conditions(settings: QueuedConfig) -> dict[Key, str]:
    """Return every condition of the file, by its key."""
    conditions: dict[Key, str] = {
        ("workers", number, "where"): worker.where
        for number, worker in enumerate(settings.workers)
        if worker.where
    }
    if settings.environment.database.where:
        conditions[_WHERE_KEY] = settings.environment.database.where
    return conditions


def _stored(settings: QueuedConfig) -> set[Key]:
    """Return the keys of the conditions that become standing rules."""
    rules = [number for number, worker in enumerate(settings.workers) if is_rule(worker)]
    keys: set[Key] = {("workers", number, "where") for number in rules}
    return keys | {_WHERE_KEY} if rules else keys


@main.command()
@config_option("queued.yaml")
@click.option(
    "--worker",
    "names",
    multiple=True,
    help="Run only the worker, or the loop of a feature, with this name; may be repeated.",
)
@attached_option
@reporting
def run(config: Path, names: tuple[str, ...], attached: bool) -> None:
    """Run the workers until SIGTERM or SIGINT. SIGHUP reads the configuration again."""
    settings = read_config(config, parsers())
    known = [worker.name for worker in settings.workers]
    named = list(loaded("named_loops"))
    known += [name for each in named for name in each.names(settings)]
    for name in names:
        if name not in known:
            kinds = " or ".join(["worker", *(each.kind for each in named)])
            reason = f"workers: no {kinds} {name!r}; {hint(name, known)}"
            raise ConfigError([f"{config}: {reason}"])
    if names and settings.delivery.hold_all:
        names = (*names, settings.workers[-1].name)  # the worker that holds all mail
    logs.configure(settings.log, daemon=QUEUED.name)
    uri = QUEUED.resolve(settings.environment)
    uvloop.run(_run(config, settings, uri, names, attached=attached))


async def _run(
    path: Path, settings: QueuedConfig, uri: str, names: tuple[str, ...], *, attached: bool
) -> None:
    conditions = _conditions(settings)
    log = logs.get("queued")
    for key, condition in conditions.items():
        if hint := case_hint(condition):
            log.warning("a condition is case-sensitive", key=dotted(key), hint=hint)
    for risk in settings.warnings:
        log.warning("configuration", reason=risk)
    signals = Signals()
    if attached:
        signals.attach()
    manager = ServiceManager()
    watch = start_part("watchdog", manager.keep_watch)
    # PostgreSQL may be away for longer than systemd waits for the start
    manager.ready("waits for PostgreSQL")
    waiting = Waiting("queued")
    while not signals.stop.is_set():
        try:
            if conditions:
                await _check(path, uri, conditions, settings)
            if lacking := await _check_loops(path, uri, settings):
                for line in mistakes(path, lacking).problems:
                    log.warning("configuration", reason=line)
            break
        except psycopg.errors.UndefinedTable:
            waiting.tell(SchemaMismatch(NO_QUEUE))
        except StoreUnavailable as error:
            waiting.tell(error)
        except psycopg.Error as error:
            if not outage(error):
                raise
            waiting.tell(error)
        await first(signals.stop, timeout=_RETRY_PAUSE_S)
    reread = partial(read_config, path, parsers())
    await Daemon(settings, uri, reread, signals, names, manager).run()
    watch.cancel()
