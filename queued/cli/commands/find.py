"""The command `queuectl find`: mail that waits, and mail that has left the queue."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import click

from pgmta.command import EXIT_FAILURE, instant, print_line
from pgmta.errors import AddressError, ConfigError
from pgmta.mail.telephone import is_number, number_of
from pgmta.postgres.operator import connected
from pgmta.store.changes.search import Wanted
from pgmta.store.changes.search import find as find_mail
from queued.cli.commands.show import why
from queued.cli.options.filter_options import search_options
from queued.cli.options.queue_command import (
    Column,
    Cut,
    Form,
    command,
    database_of,
    print_rows,
    read_since_s,
)


@command(rows=True)
@search_options
@click.option(
    "--verp", multiple=True, metavar="ADDRESS", help="VERP address, as a host saw the sender."
)
@click.option(
    "--since", default="30d", show_default=True, metavar="TIME",
    help="How far back the log is searched: so long, or to this time.",
)  # fmt: skip
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="Print at most this number of each: waiting, and gone.",
)
async def find(
    config: Path,
    recipient: tuple[str, ...],
    domain: tuple[str, ...],
    sender: tuple[str, ...],
    tenant: tuple[str, ...],
    message_id_header: tuple[str, ...],
    client: tuple[str, ...],
    submitted_by: tuple[str, ...],
    metadata: tuple[str, ...],
    verp: tuple[str, ...],
    since: str,
    limit: int,
    form: Form,
) -> None:
    """Find mail by addresses, domain, Message-ID, client or metadata, also when it has left.

    Each line is a recipient: its status in the queue, or the last event in the log. In the log an
    address without * is found as given, or in lower case; if none is, the log is read for it in
    any case, which takes longer.
    """
    named = tuple(_named_rows(config, verp)) if verp else ()
    wanted = Wanted(
        tuple(map(_as_stored, recipient)),
        domain,
        sender,
        tenant,
        message_id_header,
        metadata,
        client,
        submitted_by,
        named,
    )
    if wanted == Wanted():
        raise ConfigError(
            [
                "find needs --recipient, --domain, --sender, --tenant, --message-id, --client, "
                "--submitted-by, --metadata or --verp"
            ]
        )
    seconds = read_since_s(since)
    try:
        async with connected(database_of(config)) as db:
            rows = await find_mail(db, wanted, seconds, limit)
    except ValueError as error:
        raise ConfigError([str(error)]) from None
    if form.for_machines or rows:
        print_rows(rows, _COLUMNS, form)
    if not rows:
        if not form.for_machines:
            print_line("error: nothing found", err=True)
        sys.exit(EXIT_FAILURE)


_COLUMNS: dict[str, Column] = {
    "ID": "message_id",
    "STATE": "state",
    "AT": lambda row: instant(row["at"]),
    "SENDER": lambda row: f"<{row['sender']}>",
    "RECIPIENT": "recipient",
    "CLIENT": lambda row: row["client"] or "-",
    "MESSAGE-ID": Cut(lambda row: row["message_id_header"] or "-", 120),
    "REPLY OR REASON": Cut(lambda row: why(row) or "-"),
}


def _as_stored(recipient: str) -> str:
    """Return a telephone number without separators, as the queue has it."""
    if is_number(recipient):
        with suppress(AddressError):
            return number_of(recipient)
    return recipient


def _named_rows(config: Path, addresses: Sequence[str]) -> list[tuple[int, int]]:
    """Return the rows that VERP addresses name, as pairs of message and row. Raises ConfigError.

    The hash is not checked: an operator may not be able to read the keys.
    """
    # here, because a search without --verp needs no routes, whose import takes long
    from queued.config import read_config
    from queued.routing.routes import return_addresses

    templates = return_addresses(read_config(config, passwords=False).routing)
    rows = []
    for text in addresses:
        address = text.strip().removeprefix("<").removesuffix(">")
        domain = address.rpartition("@")[2].lower()
        named = templates.named(address, domain, datetime.now(UTC))
        if not named:
            raise ConfigError([f"--verp: no route of {config} makes addresses such as {text!r}"])
        rows.append((named.message_id, named.row_id))
    return rows
