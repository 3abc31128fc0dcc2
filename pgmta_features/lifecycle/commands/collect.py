"""`queuectl lifecycle collect`: a collector that prints, with the variables of mailroom."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from functools import partial

import click
import uvloop

from pgmta import logs
from pgmta.command import reporting
from pgmta.compose.token import KeyRing, KeyRings, Purpose, TokenKey
from pgmta.config.environment import Log
from pgmta.daemon_role import process_name
from pgmta.errors import ConfigError
from pgmta.postgres.link import connect
from pgmta.service import Signals
from pgmta_features.lifecycle.collections import SESSION
from pgmta_features.lifecycle.collector_loop import CollectorLoop
from pgmta_features.lifecycle.config import Collector
from pgmta_features.lifecycle.outputs import LineOutput, csv_frame, json_frame

_KEY = re.compile(r"[0-9A-Fa-f]{64}")
_NUMBERS = {
    "MAILROOM_BATCH_LIMIT": ("limit", 10),
    "MAILROOM_BATCH_TIMEOUT": ("timeout", 5_000),
    "MAILROOM_HEALTHCHECK_INTERVAL": ("healthcheck", 270_000),
}
"""Variables with whole numbers: settings and defaults; times are in milliseconds."""


@click.command()
@click.option("--format", "form", type=click.Choice(["json", "csv"]), default="json",
              show_default=True, help="A JSON array per batch, or mailroom's line.")  # fmt: skip
@reporting
def collect(form: str) -> None:
    """Print the tokens that wait, a line per batch, until SIGTERM, SIGINT or a closed pipe.

    MAILROOM_DATABASE_URL and MAILROOM_SECRET_KEY (64 hexadecimal digits) are needed;
    MAILROOM_CHANNEL_NAME, MAILROOM_QUEUE_NAME, MAILROOM_BATCH_LIMIT, MAILROOM_BATCH_TIMEOUT and
    MAILROOM_HEALTHCHECK_INTERVAL (milliseconds) have defaults. Tokens are marked after they were
    printed. The line of `csv` can't have a comma: such a token is named on stderr and left out.
    """
    problems: list[str] = []
    uri = os.environ.get("MAILROOM_DATABASE_URL", "")
    if not uri:
        problems.append("MAILROOM_DATABASE_URL: it is not set")
    digits = os.environ.get("MAILROOM_SECRET_KEY", "")
    if not _KEY.fullmatch(digits):
        problems.append("MAILROOM_SECRET_KEY: expected 64 hexadecimal digits")
    settings: dict[str, object] = {
        "name": os.environ.get("MAILROOM_QUEUE_NAME", "mailroom"),
        "channel": os.environ.get("MAILROOM_CHANNEL_NAME", "token_insert"),
        "output": "stdout",
    }
    for name, (setting, default) in _NUMBERS.items():
        text = os.environ.get(name, str(default))
        if not (text.isascii() and text.isdigit() and int(text)):
            problems.append(f"{name}: expected a whole number from 1 on, not {text!r}")
        else:
            settings[setting] = int(text) if setting == "limit" else int(text) / 1000
    if not problems:
        try:
            collector = Collector.model_validate(settings)
        except ValueError as error:
            problems += [_line(each) for each in error.errors()]  # type: ignore[attr-defined]
    if problems:
        raise ConfigError(problems)
    logs.configure(Log(), daemon="collect")
    key = TokenKey("mailroom", bytes.fromhex(digits))
    keys = KeyRings({purpose: KeyRing(purpose, [key]) for purpose in Purpose})
    frame = json_frame if form == "json" else csv_frame
    output = LineOutput(collector, sys.stdout, lambda: keys, frame)
    name = process_name("collect")
    link = partial(connect, uri, "collect", SESSION)
    loop = CollectorLoop(collector, name, link, output, ends_unread=True)
    uvloop.run(_until_stopped(loop))


def _line(error: dict[str, object]) -> str:
    """Return a mistake of the settings under the name of its variable."""
    names = {setting: name for name, (setting, _) in _NUMBERS.items()}
    names |= {"channel": "MAILROOM_CHANNEL_NAME", "name": "MAILROOM_QUEUE_NAME"}
    place = error["loc"]
    setting = str(place[0]) if isinstance(place, tuple) and place else "healthcheck"
    return f"{names.get(setting, setting)}: {str(error['msg']).removeprefix('Value error, ')}"


async def _until_stopped(loop: CollectorLoop) -> None:
    signals = Signals()
    work = asyncio.create_task(loop.run())
    work.add_done_callback(lambda _: signals.stop.set())
    await signals.stop.wait()
    work.cancel()
    await asyncio.wait([work])
    if not work.cancelled():
        work.result()
