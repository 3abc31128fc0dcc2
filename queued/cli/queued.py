"""The command `queued`."""

from __future__ import annotations

from pathlib import Path

import click
import psycopg
import uvloop

from queued import logs
from queued.command import config_option, print_line, reporting
from queued.config.loader import load
from queued.config.queued import QueuedConfig
from queued.config.types import hint
from queued.daemon import Daemon
from queued.database import resolve
from queued.errors import ConfigError
from queued.faults import outage
from queued.service import Signals, first
from queued.store.conditions import check_conditions

_DEFAULT = "etc/queued.yaml"
_RETRY = 0.5  # seconds


@click.group()
def main() -> None:
    """Deliver mail from the queue."""


@main.command()
@config_option(_DEFAULT)
@reporting
def check(config: Path) -> None:
    """Check a configuration file; exit 2 and say what is wrong, or exit 0."""
    load(config, QueuedConfig)
    print_line(f"{config}: ok")


@main.command()
@config_option(_DEFAULT)
@click.option("--worker", "names", multiple=True, help="Run only this worker; may be repeated.")
@reporting
def run(config: Path, names: tuple[str, ...]) -> None:
    """Run the workers until SIGTERM or SIGINT; SIGHUP reads the configuration again."""
    settings = load(config, QueuedConfig)
    known = [worker.name for worker in settings.workers]
    for name in names:
        if name not in known:
            raise ConfigError([f"{config}: workers: no worker {name!r}; {hint(name, known)}"])
    logs.configure(settings.log, daemon="queued")
    uri = resolve(settings.environment)
    uvloop.run(_run(config, settings, uri, names))


async def _run(path: Path, settings: QueuedConfig, uri: str, names: tuple[str, ...]) -> None:
    conditions = {
        f"workers[{number}].where (worker {worker.name})": worker.where
        for number, worker in enumerate(settings.workers)
        if worker.where
    }
    if settings.environment.database.where:
        conditions["environment.database.where"] = settings.environment.database.where
    log = logs.get("queued")
    signals = Signals()
    while conditions and not signals.stop.is_set():
        try:
            await check_conditions(uri, conditions)
            break
        except ConfigError as error:
            raise ConfigError([f"{path}: {problem}" for problem in error.problems]) from None
        except psycopg.Error as error:
            if not outage(error):
                raise
            log.warning("waiting for the database", reason=str(error).strip())
            await first(signals.stop, timeout=_RETRY)
    await Daemon(settings, uri, lambda: load(path, QueuedConfig), signals, names).run()
