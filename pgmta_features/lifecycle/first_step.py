"""The schema and the templates of lifecycle mail, which `queuectl up` makes."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

from pgmta.shipped import shipped
from pgmta.store.changes.templates import TemplateTable
from pgmta_features.lifecycle.installation import install
from queued.cli.options.first_step import FirstStep
from queued.cli.options.template_file import read_templates

_MAILS = Path("etc/dev/mails")


def _prepare(uri: str) -> None:
    """Install the schema lifecycle, and store the templates.

    Raises MigrationError, StoreUnavailable, TemplateError, psycopg.Error.
    """
    for source in sorted((shipped("etc") / "dev" / "mails").glob("*.txt")):
        if not (_MAILS / source.name).exists():
            _MAILS.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, _MAILS / source.name)
    install(uri)
    with closing(TemplateTable(uri, "queuectl up")) as table:
        table.put(read_templates(tuple(sorted(_MAILS.glob("*.txt"))), ""))


STEP = FirstStep(_prepare, "takes the links of `queuectl lifecycle demo -c etc/dev/queued.yaml`")
