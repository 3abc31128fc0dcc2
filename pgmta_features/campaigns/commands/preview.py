"""`queuectl campaign preview`: the mail that a recipient would get."""

from __future__ import annotations

from pathlib import Path

import click

from pgmta.command import print_line
from pgmta.compose.composed_message import parts_for
from pgmta.compose.parts import Parts
from pgmta.compose.token import KeyRing, KeyRings, Purpose, TokenKey
from pgmta.config.loader import load
from pgmta.errors import PgmtaError
from pgmta.mail.telephone import is_number, segments_of
from pgmta_features.campaigns.commands.argument import about_campaign
from pgmta_features.campaigns.commands.recipients import CampaignRecipients, open_recipients
from queued.cli.options.queue_command import command
from queued.cli.options.shown_parts import show_parts, view_options
from queued.config import whole_model

_EXAMPLE_KEY = TokenKey("example", bytes(32))  # no real key: links of a preview unsubscribe nobody
_EXAMPLE_URL = "https://example.com"


@command(json=True)
@about_campaign
@click.argument("number", type=int, default=1)
@view_options
async def preview(
    config: Path, name: str, number: int, tenant: str, view: str | None, opened: bool, as_json: bool
) -> None:
    """Print the mail that recipient NUMBER of campaign NAME gets; the first one without a number.

    Date, Message-ID and the token that unsubscribes are examples. Nothing is stored or sent. For a
    telephone number stderr has the segments of the text.
    """
    async with open_recipients(config, tenant, name) as campaign:
        found = await campaign.recipient(number)
        url = load(config, whole_model()).tokens.unsubscribe_url or _EXAMPLE_URL
        parts = composed(campaign, found.recipient, found.params, number, url)
    show_parts(parts, view=view, opened=opened, as_json=as_json)
    if is_number(found.recipient) and not as_json:
        print_line(f"SMS: {segments_of(parts.body or '')}", err=True)


def composed(
    campaign: CampaignRecipients, recipient: str, words: dict[str, object], number: int, url: str
) -> Parts:
    """Return the parts of a recipient's mail, with an example of a token. Raises PgmtaError."""
    ring = KeyRing(Purpose.UNSUBSCRIBE, [_EXAMPLE_KEY])
    keys = KeyRings({Purpose.UNSUBSCRIBE: ring}, url)
    try:
        return parts_for(campaign.params(recipient, words, number), campaign.template, keys)
    except ValueError as error:
        raise PgmtaError(f"recipient {number}: {error}") from None
