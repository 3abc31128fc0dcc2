"""`queuectl campaign preview`: the mail that a recipient would get."""

from __future__ import annotations

from pathlib import Path

import click

from pgmta.command import print_line
from pgmta.compose.composed_message import parts_for
from pgmta.compose.parts import Parts
from pgmta.compose.token import KeyRing, KeyRings, Purpose, TokenKey
from pgmta.config.loader import load
from pgmta.errors import ConfigError, PgmtaError
from pgmta_features.campaigns.commands.argument import about_campaign
from pgmta_features.campaigns.commands.recipients import CampaignRecipients, open_recipients
from pgmta_features.campaigns.list_table import Recipient
from pgmta_features.campaigns.lists.row_check import words_of
from queued.cli.options.queue_command import command, read_address
from queued.cli.options.shown_parts import show_parts, view_options
from queued.config import whole_model

_EXAMPLE_KEY = TokenKey("example", bytes(32))  # no real key: links of a preview unsubscribe nobody
_EXAMPLE_URL = "https://example.com"


@command(json=True)
@about_campaign
@click.argument("number", type=int, required=False)
@click.option("--recipient", metavar="ADDRESS", help="The mail of this recipient.")
@click.option("--any", "by_chance", is_flag=True, help="That of one by chance, named on stderr.")
@view_options
async def preview(
    config: Path,
    name: str,
    tenant: str,
    number: int | None,
    recipient: str | None,
    by_chance: bool,
    view: str | None,
    opened: bool,
    as_json: bool,
) -> None:
    """Print the mail that recipient NUMBER of campaign NAME gets; the first one without a number.

    The recipients are numbered as they were imported. Date, Message-ID and the token that
    unsubscribes are examples. Nothing is stored or sent. stderr names words that are empty.
    """
    if (number is not None) + (recipient is not None) + by_chance > 1:
        raise ConfigError(["NUMBER, --recipient and --any exclude each other"])
    async with open_recipients(config, tenant, name) as campaign:
        if recipient is not None:
            found = await campaign.recipient_with(read_address(recipient))
        elif by_chance:
            found = await campaign.recipient_by_chance()
        else:
            found = await campaign.recipient(1 if number is None else number)
        if by_chance:
            print_line(f"recipient {found.number}, {found.recipient}", err=True)
        for word in words_of(campaign.template):
            if not found.params.get(word, word).strip():
                print_line(f"recipient {found.number}: the word {word} is empty", err=True)
        url = load(config, whole_model()).tokens.unsubscribe_url or _EXAMPLE_URL
        parts = composed(campaign, found, url)
    show_parts(parts, view=view, opened=opened, as_json=as_json)


def composed(campaign: CampaignRecipients, found: Recipient, url: str) -> Parts:
    """Return the parts of a recipient's mail, with an example of a token. Raises PgmtaError."""
    ring = KeyRing(Purpose.UNSUBSCRIBE, [_EXAMPLE_KEY])
    keys = KeyRings({Purpose.UNSUBSCRIBE: ring}, url)
    params = campaign.params(found.recipient, found.params, found.number)
    try:
        return parts_for(params, campaign.template, keys)
    except ValueError as error:
        raise PgmtaError(f"recipient {found.number}, {found.recipient}: {error}") from None
