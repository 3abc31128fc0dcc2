"""`queuectl inspect --disconnect`: end connections to next hops."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import click

from pgmta.command import EXIT_FAILURE, age, print_line
from pgmta.errors import ConfigError, PgmtaError
from pgmta.postgres.operator import connected
from pgmta_features.inquiries.asking import Answered, ask
from pgmta_features.inquiries.store import DISCONNECT
from queued.cli.options.queue_command import command, database_of

_ID = re.compile(r"([0-9a-f]+)/([1-9][0-9]{0,17})")


@command(name="inspect --disconnect")
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
async def disconnect(config: Path, ids: tuple[str, ...]) -> None:
    """End connections to next hops, which `queuectl inspect` lists with their ids.

    The mail on one has the outcome of a connection that broke then: after the final dot unknown,
    else deferred or delivered by another host. Its log entry has the reason `ended by operator`.
    """
    parts = [_parse(each) for each in ids]
    failed = False
    async with connected(database_of(config)) as db:
        for each, (process, number) in zip(ids, parts, strict=True):
            try:
                asked = await ask(db, DISCONNECT, number, process)
            except PgmtaError as error:
                print_line(f"error: {each}: {error}", err=True)
                failed = True
                continue
            failed = not _report(each, asked) or failed
    if failed:
        sys.exit(EXIT_FAILURE)


def _report(name: str, asked: Answered) -> bool:
    """Print what became of a connection; return whether it was ended."""
    asked.warn()
    ended = next((answer.get("ended") for answer in asked.answers.values()), None)
    if ended is None:
        why = "it is not known whether it was ended; `queuectl inspect` shows it"
        if asked.answers:
            why = "no such connection is open"
        print_line(f"error: {name}: {why}", err=True)
        return False
    mail = "no mail"
    if ended["rows"]:
        mail = f"message {ended['message_id']}, rows {ended['rows']}"
    elif ended.get("waiting"):
        mail = f"no mail, waiting rows {ended['waiting']}"
    print_line(f"{name} is ended: {ended['host']}, {ended['phase']} for "
               f"{age(ended['seconds'])}, {mail}")  # fmt: skip
    return True


def _parse(text: str) -> tuple[str, str]:
    """Return the process and the number of an id. Raises ConfigError."""
    found = _ID.fullmatch(text)
    if not found:
        raise ConfigError([f"{text!r} is no id of a connection: expected 3f9a01/12"])
    return found[1], found[2]
