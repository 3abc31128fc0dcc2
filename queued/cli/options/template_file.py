"""Templates in files: NAME.txt, NAME.html or both, with the fields in front matter (YAML)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import AfterValidator, BeforeValidator, Field

from pgmta.compose.template import TemplateSource, compile_template
from pgmta.config.loader import parse_lines
from pgmta.config.types import Section
from pgmta.config.yaml_file import KeyLines
from pgmta.errors import ConfigError, TemplateError
from pgmta.mail.names import check_name, check_tenant
from pgmta.store.changes.templates import NamedTemplate

SUFFIXES = (".txt", ".html")
"""How the names of template files end."""

_FENCE = "---"
_UNQUOTED = re.compile(r"\s*[\w-]+:\s*\{\{")
_BRACKETED = re.compile(r"<([^<>]*)>\s*\Z")


class FrontMatter(Section):
    """Hold the fields of a template as its file has them."""

    name: Annotated[str, AfterValidator(check_name)] | None = None
    tenant: Annotated[str, AfterValidator(check_tenant)] | None = None
    sender: str | None = None
    from_: str = Field(alias="from")
    reply_to: str | None = None
    subject: Annotated[str, BeforeValidator(lambda text: "" if text is None else text)]
    headers: dict[str, str] = Field(default_factory=dict)
    unsubscribe: str | None = None

    @property
    def reverse_path(self) -> str:
        """The reverse-path: `sender`, or else the address in From."""
        if self.sender is not None:
            return self.sender
        found = _BRACKETED.search(self.from_)
        return found[1].strip() if found else self.from_.strip()


@dataclass(frozen=True, slots=True)
class _Content:
    """A file: its front matter with blank lines in place of all else, its text, and its line."""

    path: Path
    front: str
    text: str
    line: int


def read_templates(paths: Iterable[Path], tenant: str = "") -> list[NamedTemplate]:
    """Return the templates of these files. Both files of a template may be named.

    `tenant` is that of templates that name none. Raises ConfigError with a mistake of each file.
    """
    found: dict[tuple[str, str], Path] = {}
    templates, problems = [], list[str]()
    for path in dict.fromkeys(map(_first, paths)):
        try:
            given = read_template(path, tenant)
        except ConfigError as error:
            problems += error.problems
            continue
        other = found.setdefault((given.tenant, given.name), path)
        if other != path:
            problems.append(f"{path}: {other} has a template {given.name} already")
        templates.append(given)
    if problems:
        raise ConfigError(problems)
    return templates


def read_template(path: Path, tenant: str = "") -> NamedTemplate:
    """Return the template that a file has, or two of one name. Raises ConfigError."""
    path = _first(path)
    first = _read(path)
    html = path.with_suffix(".html")
    second = _read(html) if path.suffix == ".txt" and html.exists() else None
    if not first.front:
        raise ConfigError([
            f"{path}:1: it does not begin with {_FENCE}; the fields of a template are YAML between "
            f"two lines {_FENCE}"
        ])  # fmt: skip
    if second and second.front:
        raise ConfigError([f"{html}:1: {path} has the fields of this template"])
    fields, lines = _fields(first)
    contents: dict[str, _Content | None]
    contents = {"body": first, "html": second} if path.suffix == ".txt" else {"html": first}
    texts = {part: each.text for part, each in contents.items() if each and each.text.strip()}
    source = TemplateSource(
        sender=fields.reverse_path,
        from_=fields.from_,
        reply_to=fields.reply_to or None,
        subject=fields.subject,
        body=texts.get("body"),
        html=texts.get("html"),
        headers=fields.headers,
        unsubscribe=fields.unsubscribe or None,
    )
    try:
        name = fields.name or check_name(path.stem)
    except ValueError as error:
        raise ConfigError([f"{path}: {error}; write name: NAME into the file"]) from None
    try:
        template = compile_template(source)
    except TemplateError as error:
        raise ConfigError([_located(error, first, contents, lines)]) from None
    owner = tenant if fields.tenant is None else fields.tenant
    return NamedTemplate(owner, name, source, template)


def _first(path: Path) -> Path:
    """Return the file with the front matter. Raises ConfigError for another ending."""
    if path.suffix not in SUFFIXES:
        raise ConfigError([f"{path}: a template is NAME.txt, NAME.html or both"])
    text = path.with_suffix(".txt")
    return text if text.exists() else path


def _read(path: Path) -> _Content:
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except OSError as error:
        raise ConfigError([f"{path}: {error.strerror}"]) from None
    except UnicodeDecodeError:
        raise ConfigError([f"{path}: is not UTF-8"]) from None
    if lines[0].rstrip() != _FENCE:
        return _Content(path, "", "\n".join(lines), 1)
    ends = [number for number, line in enumerate(lines) if number and line.rstrip() == _FENCE]
    if not ends:
        raise ConfigError([f"{path}:1: its fields have no end: a line {_FENCE}"])
    for number, line in enumerate(lines[1 : ends[0]], 2):
        if _UNQUOTED.match(line):
            raise ConfigError([f"{path}:{number}: a value that begins with {{{{ needs quotes"])
    start = ends[0] + 1
    while start < len(lines) - 1 and not lines[start].strip():
        start += 1  # skips empty lines before the text
    front = "\n" + "\n".join(lines[1 : ends[0]]) + "\n"
    return _Content(path, front, "\n".join(lines[start:]), start + 1)


def _fields(content: _Content) -> tuple[FrontMatter, KeyLines]:
    return parse_lines(content.front, content.path, FrontMatter)


def _located(
    error: TemplateError, first: _Content, contents: dict[str, _Content | None], lines: KeyLines
) -> str:
    """Return the mistake with its file and line."""
    content = contents.get(error.part)
    if content:
        return f"{content.path}:{content.line + error.line - 1}: {error.advice}"
    part, advice = error.part, error.advice
    # if the file names no sender, the mistake is in the address of From
    if part == "sender" and ("sender",) not in lines and not error.hint:
        part, advice = "from", f"{advice}; write ADDRESS or NAME <ADDRESS>"
    key, _, name = part.partition(".")
    line = lines.get((key, name) if name else (key,)) or (lines.get(("from",)) if key else None)
    where = f"{first.path}:{line}" if line else f"{first.path}"
    return ": ".join(filter(None, (where, part, advice)))


def front_matter(tenant: str, name: str, source: TemplateSource) -> str:
    """Return the fields of a template as its file may have them."""
    fields = {
        "name": name,
        **({"tenant": tenant} if tenant else {}),
        "sender": source.sender,
        "from": source.from_,
        **({"reply_to": source.reply_to} if source.reply_to else {}),
        "subject": source.subject,
        **({"headers": dict(sorted(source.headers.items()))} if source.headers else {}),
        **({"unsubscribe": source.unsubscribe} if source.unsubscribe else {}),
    }
    text = yaml.safe_dump(fields, sort_keys=False, allow_unicode=True, width=1 << 20)
    return f"{_FENCE}\n{text}{_FENCE}\n"
