"""`queuectl campaign test`: one real mail, and what became of it."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any, TextIO

import click

from pgmta.command import EXIT_FAILURE, print_json, print_line
from pgmta.config.types import hint
from pgmta.errors import ConfigError, PgmtaError
from pgmta.postgres.operator import OperatorConnection, connected
from pgmta.store.changes import sql_interface
from pgmta_features.campaigns.commands.argument import about_campaign
from pgmta_features.campaigns.commands.recipients import CampaignRecipients, open_recipients
from pgmta_features.campaigns.lists.row_check import words_of
from queued.cli.options.queue_command import command, database_of, read_address
from queued.cli.options.word_options import read_words, word_options

_LOOK_INTERVAL_S = 0.2
_WAITING_STATES = ("queued", "scheduled", "sending")


@command(json=True)
@about_campaign
@click.argument("address")
@click.option("--number", type=int, help="Take the words of this recipient.  [default: the first]")
@word_options
@click.option("--timeout", default=60.0, show_default=True, help="Seconds to wait.")
async def test(
    config: Path,
    name: str,
    tenant: str,
    address: str,
    number: int | None,
    param: tuple[str, ...],
    params_file: TextIO | None,
    timeout: float,
    as_json: bool,
) -> None:
    """Send one mail of campaign NAME to ADDRESS, and wait for its outcome.

    It goes out with the credential of the campaign and at its rate, and counts for no recipient. So
    a wrong password shows before a million of mails. Exit 1 unless the next hop took it; then it is
    not tried again.
    """
    recipient = read_address(address)
    async with open_recipients(config, tenant, name) as campaign:
        words = await _words(campaign, number, read_words(param, params_file))
        if not await campaign.table.worker_runs():
            raise PgmtaError("no worker that delivers runs (`queuectl workers`): start queued")
        message = await campaign.table.test(campaign.id, recipient, words)
    async with connected(database_of(config)) as db:
        outcome = await _outcome(db, message, timeout)
    if as_json:
        print_json({"id": message, **outcome})
    else:
        reply = f"{outcome['code'] or ''} {outcome['reply'] or ''}".strip()
        print_line(f"{outcome['state']}: message {message} to {address}"
                   f"{f', {reply}' if reply else ''}")  # fmt: skip
    if outcome["state"] != "delivered":
        sys.exit(EXIT_FAILURE)


async def _words(
    campaign: CampaignRecipients, number: int | None, given: dict[str, Any]
) -> dict[str, Any]:
    """Return the words of a recipient, with those that were given in their place."""
    wanted = words_of(campaign.template)
    for word in given:
        if word not in wanted:
            advice = hint(word, wanted) if wanted else "it has none"
            raise ConfigError([f"--param {word}: the template has no such word; {advice}"])
    if number is None and set(given) == set(wanted):
        return given
    found = await campaign.recipient(number or 1)
    return {word: found.params.get(word, "") for word in wanted} | given


async def _outcome(db: OperatorConnection, message: int, timeout: float) -> dict[str, Any]:
    """Wait for the first attempt. Mail that was not delivered is cancelled. Raises PgmtaError."""
    end = time.monotonic() + timeout
    while True:
        rows = await sql_interface.status(db, [message])
        row = rows[0] if rows else {"state": "unknown", "attempts": 0, "code": None, "reply": None}
        if row["state"] not in _WAITING_STATES:
            break
        if time.monotonic() > end:
            await sql_interface.cancel(db, message, "the test is over")
            raise PgmtaError(f"message {message} has no outcome within {timeout:g} s, and was "
                             "cancelled: `queuectl workers` shows whether queued runs, and "
                             "`queuectl explain` what it waits for")  # fmt: skip
        await asyncio.sleep(_LOOK_INTERVAL_S)
    if row["state"] in ("deferred", "held"):
        await sql_interface.cancel(db, message, "the test is over")
    return {key: row[key] for key in ("state", "attempts", "code", "reply")}
