"""Keys, templates and the schema of lifecycle mail, which `queuectl up` makes."""

from __future__ import annotations

import os
import secrets
import shutil
from contextlib import closing
from pathlib import Path

from pgmta.compose.token import SECRET_OCTETS, Purpose
from pgmta.shipped import shipped
from pgmta.store.changes.templates import TemplateTable
from pgmta.store.lifecycle.installation import install
from queued.cli.options.template_file import read_templates

WEB = Path("etc/dev/web.yaml")
"""The configuration of `queued web`."""

WEB_PORT = 2581
"""The port in it."""

_MAILS = Path("etc/dev/mails")


def make_keys(directory: Path) -> None:
    """Make the keys that are missing; the configurations name their files."""
    folder = directory / "keys"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for purpose in Purpose:
        path = folder / f"{purpose}.key"
        if not path.exists():
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(f"{secrets.token_hex(SECRET_OCTETS)}\n")


def make_lifecycle(uri: str) -> None:
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
