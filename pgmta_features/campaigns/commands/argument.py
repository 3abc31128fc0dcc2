"""The argument NAME and the option --tenant of commands about one campaign."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import click
import psycopg

from pgmta.errors import PgmtaError
from pgmta.postgres import faults
from pgmta.postgres.operator import connected
from pgmta_features.campaigns.campaign_table import CampaignTable
from queued.cli.options.queue_command import database_of, who

tenant_option = click.option("--tenant", default="", help="Tenant of the campaign.")


def about_campaign(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the argument NAME and the option --tenant."""
    return click.argument("name")(tenant_option(function))


@asynccontextmanager
async def campaign_table(config: Path) -> AsyncIterator[CampaignTable]:
    """Open the campaigns of a configuration's database; errors of its functions are short."""
    async with connected(database_of(config)) as db:
        with short_errors():
            yield CampaignTable(db, who())


@contextmanager
def short_errors() -> Iterator[None]:
    """Turn errors that functions of the database raise into a PgmtaError with their hint."""
    try:
        yield
    except (
        psycopg.errors.ObjectNotInPrerequisiteState,
        psycopg.errors.NoDataFound,
        psycopg.errors.InvalidParameterValue,
        psycopg.errors.UniqueViolation,
        psycopg.errors.CheckViolation,
    ) as error:
        parts = [error.diag.message_primary or faults.one_line(error)]
        parts += [error.diag.message_detail] if error.diag.message_detail else []
        hint = f". {error.diag.message_hint.rstrip('.')}" if error.diag.message_hint else ""
        raise PgmtaError("; ".join(part.rstrip(".") for part in parts) + hint) from None
