"""The command `queued`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click
import psycopg
import uvloop

from pgmta import logs
from pgmta.command import attached_option, config_option, print_line, reporting, version_option
from pgmta.config.loader import mistakes
from pgmta.config.types import hint
from pgmta.errors import ConfigError, SchemaMismatch
from pgmta.postgres.embedded import QUEUED
from pgmta.postgres.faults import outage
from pgmta.postgres.locate import resolve, running
from pgmta.service import Signals, first
from pgmta.store.conditions import case_hint, check_conditions
from queued.cli.target import CONFIG
from queued.config import QueuedConfig, read_config
from queued.daemon import Daemon
from queued.row_changes import is_rule
from queued.worker.keyring import key_problems

_RETRY = 0.5  # seconds
_NO_QUEUE = "the database has no queue yet"


@click.group()
@version_option("queued")
def main() -> None:
    """Deliver mail from the queue."""


@main.command()
@config_option(CONFIG)
@reporting
def check(config: Path) -> None:
    """Check a configuration file; exit 2 with its mistakes, or exit 0.

    If the database answers, PostgreSQL analyses each WHERE. If not, the command says that the
    conditions were not checked, and exits with 0.
    """
    settings = read_config(config)
    if problems := key_problems(settings.signing):  # `queued run` goes on with the other keys
        raise mistakes(config, problems)
    conditions = _conditions(settings)
    reason = asyncio.run(_unchecked(config, settings, conditions)) if conditions else None
    for key, condition in conditions.items():
        if hint := case_hint(condition):
            print_line(f"warning: {config}: {key}: {hint}", err=True)
    for note in settings.notes + settings.signing.risks:
        print_line(f"warning: {config}: {note}", err=True)
    if reason:
        print_line(f"warning: {config}: the conditions were not checked: {reason}", err=True)
    print_line(f"{config}: ok")


async def _unchecked(path: Path, settings: QueuedConfig, conditions: dict[str, str]) -> str | None:
    """Check the conditions; return the reason if that is not possible now. Raises ConfigError."""
    uri = running(settings.environment, QUEUED)
    if not uri:
        return "the embedded PostgreSQL does not run"
    try:
        await _check(path, uri, conditions, _stored(settings))
    except psycopg.errors.UndefinedTable:
        return _NO_QUEUE
    except SchemaMismatch as error:
        return str(error)
    except psycopg.Error as error:
        return " ".join(str(error).split())
    return None


async def _check(path: Path, uri: str, conditions: dict[str, str], stored: set[str]) -> None:
    try:
        await check_conditions(uri, conditions, stored)
    except ConfigError as error:
        raise ConfigError([f"{path}: {problem}" for problem in error.problems]) from None


def _conditions(settings: QueuedConfig) -> dict[str, str]:
    """Return every condition of the file, by its name in errors."""
    conditions = {
        f"workers[{number}].where (worker {worker.name})": worker.where
        for number, worker in enumerate(settings.workers)
        if worker.where
    }
    if settings.environment.database.where:
        conditions["environment.database.where"] = settings.environment.database.where
    return conditions


def _stored(settings: QueuedConfig) -> set[str]:
    """Return the keys of the conditions that become standing rules."""
    rules = [(number, worker) for number, worker in enumerate(settings.workers) if is_rule(worker)]
    keys = {f"workers[{number}].where (worker {worker.name})" for number, worker in rules}
    return keys | {"environment.database.where"} if rules else keys


@main.command()
@config_option(CONFIG)
@click.option("--worker", "names", multiple=True, help="Run only this worker; may be repeated.")
@attached_option
@reporting
def run(config: Path, names: tuple[str, ...], attached: bool) -> None:
    """Run the workers until SIGTERM or SIGINT. SIGHUP reads the configuration again."""
    settings = read_config(config)
    known = [worker.name for worker in settings.workers]
    for name in names:
        if name not in known:
            raise ConfigError([f"{config}: workers: no worker {name!r}; {hint(name, known)}"])
    logs.configure(settings.log, daemon="queued")
    uri = resolve(settings.environment, QUEUED)
    uvloop.run(_run(config, settings, uri, names, attached=attached))


async def _run(
    path: Path, settings: QueuedConfig, uri: str, names: tuple[str, ...], *, attached: bool
) -> None:
    conditions = _conditions(settings)
    log = logs.get("queued")
    for key, condition in conditions.items():
        if hint := case_hint(condition):
            log.warning("a condition is case-sensitive", key=key, hint=hint)
    for note in settings.notes:
        log.warning("a key has a new name", note=note)
    for risk in settings.signing.risks:
        log.warning("configuration", reason=risk)
    signals = Signals()
    if attached:
        signals.attach()
    logged = ""
    while conditions and not signals.stop.is_set():
        try:
            await _check(path, uri, conditions, _stored(settings))
            break
        except psycopg.errors.UndefinedTable:
            reason = f"{_NO_QUEUE}: run `queuectl migrate`"
        except SchemaMismatch as error:
            reason = str(error)
        except psycopg.Error as error:
            if not outage(error):
                raise
            reason = str(error).strip()
        if logged != reason:
            logged = reason
            log.warning("waiting for the database", reason=reason)
        await first(signals.stop, timeout=_RETRY)
    await Daemon(settings, uri, lambda: read_config(path), signals, names).run()
