"""The schema and the templates of lifecycle mail, which `queuectl up` makes."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from pgmta.postgres.operator import connected
from pgmta.shipped import shipped
from pgmta.store.changes.templates import TemplateTable
from pgmta.store.queries import feature_queries
from pgmta_features.lifecycle.installation import install
from queued.cli.options.first_step import FirstStep
from queued.cli.options.template_file import read_templates

_MAILS = Path("etc/dev/mails")

# no application takes the proof: this page of etc/dev/web.yaml shows it in its address
_RECOVERY = {"action": "password_recovery", "url": "http://127.0.0.1:2581/confirmed"}

_SQL = feature_queries("lifecycle")


async def _prepare(uri: str, _: Path) -> None:
    """Install the schema lifecycle, and store the templates.

    Raises MigrationError, StoreUnavailable, TemplateError, psycopg.Error.
    """
    new = await asyncio.to_thread(install, uri)
    async with connected(uri) as db:
        await TemplateTable(db, "queuectl up").put(read_templates(_shipped(), ""))
        if new:
            await db.execute(_SQL["return_to"], _RECOVERY)


def _shipped() -> tuple[Path, ...]:
    """Return the files of the templates; those that are missing are copied."""
    for source in sorted((shipped("etc") / "dev" / "mails").glob("*.txt")):
        if not (_MAILS / source.name).exists():
            _MAILS.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, _MAILS / source.name)
    return tuple(sorted(_MAILS.glob("*.txt")))


STEP = FirstStep(
    prepare=_prepare,
    served="takes the links of `queuectl lifecycle demo -c etc/dev/queued.yaml`",
    process="web",
    port=2581,
)
