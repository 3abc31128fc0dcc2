"""The command `queued web`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import click
import psycopg
import uvloop

from pgmta import logs
from pgmta.command import attached_option, config_option, print_line, reporting, version_option
from pgmta.config.loader import load, mistakes
from pgmta.console.error_lines import ErrorLines
from pgmta.postgres.faults import one_line
from pgmta.service import Signals

if TYPE_CHECKING:
    from pgmta.postgres.link import Link
    from queued.web.web_config import WebConfig


@click.command(cls=ErrorLines)
@config_option("web.yaml")
@click.option(
    "--check", "only_check", is_flag=True, help="Check the file; exit 2 with its mistakes."
)
@attached_option
@version_option("queued web")
@reporting
def web(config: Path, only_check: bool, attached: bool) -> None:
    """Serve pages of tokens, callbacks of providers and the HTTP API, until SIGTERM.

    SIGHUP reads the file and its keys again. `environment`, `listen`, `connections` and `log` need
    a restart.
    """
    from queued.web.web_config import whole_web_config  # other commands do without this

    settings = load(config, whole_web_config())
    if only_check:
        _check(config, settings)
        return
    logs.configure(settings.log, daemon=settings.role.name)
    uri = settings.role.resolve(settings.environment)
    uvloop.run(_run(config, settings, uri, attached=attached))


def _check(path: Path, settings: WebConfig) -> None:
    from queued.web.site_parts import parts, warnings_about

    async def check(link: Link, _: str) -> None:
        try:
            for _, part in parts(settings):
                await part.check(link)
        except psycopg.errors.InsufficientPrivilege as error:
            raise mistakes(path, [(("environment", "database", "uri"), one_line(error))]) from None

    reason = asyncio.run(settings.role.unchecked(path, settings.environment, check))
    for warning in warnings_about(settings):
        print_line(f"warning: {path}: {warning}", err=True)
    if reason:
        print_line(f"warning: {path}: the database was not checked: {reason}", err=True)
    print_line(f"{path}: ok")


async def _run(path: Path, settings: WebConfig, uri: str, *, attached: bool) -> None:
    from queued.web.web_config import whole_web_config
    from queued.web.web_daemon import WebDaemon

    signals = Signals()
    if attached:
        signals.attach()
    await WebDaemon(settings, uri, lambda: load(path, whole_web_config()), signals).run()
