"""`queuectl template`: templates of composed mail, from files into the database and back."""

from __future__ import annotations

import sys
from difflib import unified_diff
from email.utils import parseaddr
from pathlib import Path
from typing import TextIO

import click

from pgmta.command import EXIT_FAILURE, instant, print_json, print_line, print_text
from pgmta.compose.parts import NamedMailbox
from pgmta.compose.template import TemplateSource, compile_template
from pgmta.errors import AddressError, ConfigError, PgmtaError, TemplateError
from pgmta.mail.address import parse_mailbox
from pgmta.mail.names import check_tenant
from pgmta.postgres.operator import connected
from pgmta.store.changes.templates import NamedTemplate, StoredTemplate, TemplateTable
from queued.cli.options.queue_command import (
    Column,
    Cut,
    Form,
    age_of,
    command,
    database_of,
    print_rows,
    who,
)
from queued.cli.options.shown_parts import show_parts, view_options
from queued.cli.options.template_file import (
    SUFFIXES,
    front_matter,
    read_template,
    read_templates,
)
from queued.cli.options.word_options import read_words, word_options

_FILES_ARGUMENT = click.argument("files", metavar="FILE...", nargs=-1, required=True,
                        type=click.Path(dir_okay=False, path_type=Path))  # fmt: skip
_OF_FILES = click.option("--tenant", default="", help="Tenant of templates that name none.")
_TENANT_OPTION = click.option("--tenant", default="", help="Tenant of the template.")
_VERSION_OPTION = click.option("--version", type=int, help="Version.  [default: the last one]")


@click.group()
def template() -> None:
    """Store, show and try templates of composed mail."""


@command(template, rows=True)
@_FILES_ARGUMENT
@_OF_FILES
async def put(config: Path, files: tuple[Path, ...], tenant: str, form: Form) -> None:
    """Store the templates in FILEs, all or none.

    A template is NAME.txt, NAME.html or both. It gets a new version if it differs from the last
    one. Mail that waits keeps its version.
    """
    given = read_templates(files, _tenant(tenant))
    async with connected(database_of(config)) as db:
        table = TemplateTable(db, who())
        stored = await table.put(given)
    rows = [
        {"tenant": each.tenant, "name": each.name, "version": version, "new": new}
        for each, (version, new) in zip(given, stored, strict=True)
    ]
    columns: dict[str, Column] = {
        "NAME": "name",
        "VERSION": "version",
        "STATE": lambda row: "new" if row["new"] else "unchanged",
    }
    if any(each.tenant for each in given):
        columns = {"TENANT": "tenant", **columns}
    print_rows(rows, columns, form)


@command(template, "list", rows=True)
@click.option("--tenant", help="Only templates of this tenant; '' for those of none.")
async def list_templates(config: Path, tenant: str | None, form: Form) -> None:
    """List the last version of each template."""
    async with connected(database_of(config)) as db:
        table = TemplateTable(db, who())
        rows = await table.rows(tenant)
    columns: dict[str, Column] = {
        "TENANT": lambda row: row["tenant"] or "-",
        "NAME": "name",
        "VERSION": "version",
        "AGE": lambda row: age_of(row["created_at"]),
        "BY": "created_by",
        "WORDS": Cut(lambda row: ", ".join(sorted(row["words"])) or "-", 40),
        "SUBJECT": Cut("subject", 40),
    }
    print_rows(rows, columns, form)


@command(template, json=True)
@click.argument("name")
@_VERSION_OPTION
@_TENANT_OPTION
async def show(config: Path, name: str, version: int | None, tenant: str, as_json: bool) -> None:
    """Print a template, and the words with their places."""
    found = await _stored(config, name, tenant, version)
    if as_json:
        print_json(found.row)
        return
    row, source = found.row, found.source
    print_line(f"template {name}, version {found.version}, stored {instant(row['created_at'])} "
               f"by {row['created_by']}")  # fmt: skip
    for word, places in sorted(row["words"].items()):
        print_line(f"  {word}: {', '.join(places)}")
    print_text(front_matter(row["tenant"], name, source).rstrip("\n"))
    for kind, text in (("text", source.body), ("html", source.html)):
        if text is not None:
            print_line(f"{kind}:")
            print_text(text.rstrip("\n"))


@command(template, json=True, needed=False)
@click.argument("which", metavar="NAME|FILE")
@word_options
@click.option("--to", help="Recipient, ADDRESS or NAME <ADDRESS>.  [default: none]")
@_VERSION_OPTION
@_TENANT_OPTION
@view_options
async def render(
    config: Path,
    which: str,
    param: tuple[str, ...],
    params_file: TextIO | None,
    to: str | None,
    version: int | None,
    tenant: str,
    view: str | None,
    opened: bool,
    as_json: bool,
) -> None:
    """Compose mail from a template and values, and print it. Nothing is stored or sent.

    A template in a file needs no database. Date and Message-ID of the mail are examples.
    """
    if which.endswith(SUFFIXES) and (Path(which).exists() or not config.exists()):
        if version is not None:
            raise ConfigError([f"--version: it counts only with a name, and {which} is a file"])
        compiled = read_template(Path(which)).template
    else:
        if not config.exists():
            raise ConfigError([f"there is no {config} in this folder: give -c FILE, or a template "
                               "file such as NAME.txt"])  # fmt: skip
        source = (await _stored(config, which, tenant, version)).source
        try:
            compiled = compile_template(source)
        except TemplateError as error:  # another version of pgmta has stored the template
            raise PgmtaError(f"template {which}: {error}") from None
    words = read_words(param, params_file)
    try:
        parts = compiled.fill(words, [_mailbox(to)] if to else [])
    except ValueError as error:
        raise ConfigError([f"--param: {error}"]) from None
    show_parts(parts, view=view, opened=opened, as_json=as_json)


@command(template, json=True)
@_FILES_ARGUMENT
@_OF_FILES
async def diff(config: Path, files: tuple[Path, ...], tenant: str, as_json: bool) -> None:
    """Compare the templates in FILEs with the last versions; exit 1 if one differs."""
    given = read_templates(files, _tenant(tenant))
    async with connected(database_of(config)) as db:
        table = TemplateTable(db, who())
        pairs = [(each, await table.find(each.tenant, each.name)) for each in given]
    found = []
    for each, last in pairs:
        text = _difference(each, last)
        found.append({"tenant": each.tenant, "name": each.name,
                      "version": last.version if last else None, "diff": text})  # fmt: skip
        if text and not as_json:
            print_text(text.rstrip("\n"))
    if as_json:
        print_json(found)
    if any(each["diff"] for each in found):
        sys.exit(EXIT_FAILURE)


def _tenant(text: str) -> str:
    try:
        return check_tenant(text)
    except ValueError as error:
        raise ConfigError([f"--tenant: {error}"]) from None


async def _stored(config: Path, name: str, tenant: str, version: int | None) -> StoredTemplate:
    async with connected(database_of(config)) as db:
        table = TemplateTable(db, who())
        found = await table.find(tenant, name, version)
        if found:
            return found
        near = sorted({row["name"] for row in await table.rows(tenant)})
        last = await table.find(tenant, name)
    if last:
        raise PgmtaError(f"template {name} has no version {version}; the last is {last.version}")
    known = f"there is {', '.join(near[:10])}" if near else "store one by `queuectl template put`"
    raise PgmtaError(f"there is no template {name}; {known}")


def _mailbox(text: str) -> NamedMailbox:
    name, address = parseaddr(text)
    try:
        parse_mailbox(address, utf8=True)
    except AddressError as error:
        raise ConfigError([f"--to: {error}"]) from None
    return name, address


def _difference(given: NamedTemplate, last: StoredTemplate | None) -> str:
    """Return a unified diff of fields, text and html; '' if they are equal."""

    def documents(source: TemplateSource | None) -> tuple[str, str, str]:
        if source is None:
            return "", "", ""
        fields = front_matter(given.tenant, given.name, source)
        return fields, source.body or "", source.html or ""

    stored = f"{given.name} version {last.version}" if last else f"{given.name} (not stored)"
    lines: list[str] = []
    old, new = documents(last.source if last else None), documents(given.source)
    for part, before, after in zip(("fields", "text", "html"), old, new, strict=True):
        lines += unified_diff(
            before.splitlines(), after.splitlines(), f"{stored}, {part}",
            f"{given.name} in files, {part}", lineterm="",
        )  # fmt: skip
    if not lines and (last is None or last.source != given.source):
        lines = [f"{given.name}: line ends differ from version {last.version if last else 0}"]
    return "\n".join(lines)
