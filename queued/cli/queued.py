"""The command `queued`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click
import psycopg
import uvloop

from queued import logs
from queued.command import config_option, reporting
from queued.config.loader import load
from queued.config.queued import QueuedConfig
from queued.daemon import Daemon
from queued.database import resolve
from queued.errors import ConfigError
from queued.store.claim import check_where

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
    click.echo(f"{config}: ok")


@main.command()
@config_option(_DEFAULT)
@reporting
def run(config: Path) -> None:
    """Deliver until SIGTERM or SIGINT; SIGHUP reads the configuration again."""
    settings = load(config, QueuedConfig)
    logs.configure(settings.log, daemon="queued")
    uri = resolve(settings.environment)
    uvloop.run(_run(config, settings, uri))


async def _run(path: Path, settings: QueuedConfig, uri: str) -> None:
    where = settings.environment.database.where
    log = logs.get("queued")
    while where:
        try:
            await check_where(uri, where)
            break
        except ConfigError as error:
            raise ConfigError([f"{path}: {problem}" for problem in error.problems]) from None
        except psycopg.OperationalError as error:
            log.warning("waiting for the database", reason=str(error).strip())
            await asyncio.sleep(_RETRY)
    await Daemon(settings, uri, lambda: load(path, QueuedConfig)).run()
