"""A campaign, its compiled template and its recipients, as commands open them."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pgmta.compose.template import Template, compile_template
from pgmta.errors import ConfigError, PgmtaError, TemplateError
from pgmta.postgres.operator import connected
from pgmta_features.campaigns.campaign_table import CampaignTable
from pgmta_features.campaigns.commands.argument import short_errors
from pgmta_features.campaigns.list_table import CampaignTemplate, ListTable, Recipient
from queued.cli.options.queue_command import database_of, who


@dataclass(frozen=True, slots=True)
class CampaignRecipients:
    """A campaign that is open: `table` works on its recipients."""

    table: ListTable
    campaign: CampaignTemplate
    template: Template

    @property
    def id(self) -> int:
        """Its number."""
        return int(self.campaign.row["id"])

    @property
    def name(self) -> str:
        """Its name."""
        return str(self.campaign.row["name"])

    async def recipient(self, number: int) -> Recipient:
        """Return a recipient. Raises PgmtaError if there is none with this number."""
        found = await self.table.recipient(self.id, number)
        if found is None:
            last = await self.table.last(self.id)
            known = f"the last one is {last}" if last else "import some first"
            raise PgmtaError(f"{self.name} has no recipient {number}; {known}")
        return found

    async def recipient_with(self, address: str) -> Recipient:
        """Return the recipient with an address. Raises PgmtaError if there is none."""
        found = await self.table.recipient_with(self.id, address)
        if found is None:
            raise PgmtaError(
                f"{self.name} has no recipient {address}; `queuectl campaign export` has all"
            )
        return found

    async def recipient_by_chance(self) -> Recipient:
        """Return any recipient. Raises PgmtaError if there is none."""
        last = await self.table.last(self.id)
        found = await self.table.recipient_from(self.id, 1 + secrets.randbelow(last or 1))
        return found or await self.recipient(1)

    def params(self, recipient: str, words: dict[str, Any], number: int) -> dict[str, Any]:
        """Return the parameters of a recipient's message, as a worker feeds them to the queue."""
        words = {**words, "recipient": recipient}  # a list may have words that another template had
        fitting = {word: words[word] for word in words if word in self.template.words}
        params: dict[str, Any] = {"to": [["", recipient]], "words": fitting}
        if self.campaign.row["scope"] or "unsubscribe" in self.template.words:
            params["unsubscribe"] = {"campaign": self.id, "number": number}
        return params


@asynccontextmanager
async def open_recipients(
    config: Path, tenant: str, name: str
) -> AsyncIterator[CampaignRecipients]:
    """Open a campaign. Raises PgmtaError, ConfigError if its template can't be compiled."""
    async with connected(database_of(config)) as db:
        with short_errors():
            found = await CampaignTable(db, who()).find(tenant, name)
            table = ListTable(db, who())
            campaign = await table.campaign(found)
            yield CampaignRecipients(table, campaign, compiled(campaign))


def compiled(campaign: CampaignTemplate) -> Template:
    """Return the compiled template of a campaign. Raises ConfigError."""
    try:
        return compile_template(campaign.source)
    except TemplateError as error:  # stored by hand, or by another version of pgmta
        name = f"template {campaign.row['template']} version {campaign.row['version']}"
        raise ConfigError([f"{name}: {error}"]) from None
