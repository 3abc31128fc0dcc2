"""The schema and the templates of lifecycle mail, which `queuectl up` makes."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from pgmta.postgres.operator import connected
from pgmta.shipped import shipped
from pgmta.store.changes.templates import TemplateTable
from pgmta_features.lifecycle.installation import install
from queued.cli.options.first_step import FirstStep
from queued.cli.options.template_file import read_templates

_MAILS = Path("etc/dev/mails")


async def _prepare(uri: str) -> None:
    """Install the schema lifecycle, and store the templates.

    Raises MigrationError, StoreUnavailable, TemplateError, psycopg.Error.
    """
    await asyncio.to_thread(install, uri)
    async with connected(uri) as db:
        await TemplateTable(db, "queuectl up").put(read_templates(_shipped(), ""))


def _shipped() -> tuple[Path, ...]:
    """Return the files of the templates; those that are missing are copied."""
    for source in sorted((shipped("etc") / "dev" / "mails").glob("*.txt")):
        if not (_MAILS / source.name).exists():
            _MAILS.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, _MAILS / source.name)
    return tuple(sorted(_MAILS.glob("*.txt")))


STEP = FirstStep(_prepare, "takes the links of `queuectl lifecycle demo -c etc/dev/queued.yaml`")
