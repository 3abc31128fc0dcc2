"""The reference has every command and option that click knows, every key that pydantic knows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from pydantic import BaseModel

from pgmta.config.loader import load
from queued.cli.queuectl import main as queuectl
from queued.config import whole_model
from queued.daemon.queued import main as queued
from smtpd.cli import main as smtpd
from smtpd.config import SmtpdConfig

MODELS: dict[str, type[BaseModel]] = {"smtpd.yaml": SmtpdConfig, "queued.yaml": whole_model()}
GROUPS = {"smtpd": smtpd, "queued": queued, "queuectl": queuectl}


def sections(page: Path) -> dict[str, str]:
    """Return the text below each heading of a page, by heading."""
    parts = re.split(r"^#+ (.+)\n", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def commands(command: click.Command, path: str) -> dict[str, click.Command]:
    """Return a command and all below it that are not hidden, by their words."""
    found = {path: command}
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child
            if not child.hidden:
                found |= commands(child, f"{path} {name}")
    return found


@pytest.mark.slow
def test_every_command_has_its_options_on_the_page(made: Path) -> None:
    known: dict[str, click.Command] = {}
    for name, group in GROUPS.items():
        known |= commands(group, name)
    texts = sections(made / "reference" / "cli.md")
    assert set(texts) == {"Commands", *known}
    for path, command in known.items():
        lines = texts[path].splitlines()
        shown = {word for line in lines if line.startswith("  -") for word in words(line)}
        options = [p for p in command.params if isinstance(p, click.Option)]
        expected = {word for p in options if not p.hidden for word in (*p.opts, *p.secondary_opts)}
        assert shown == {*expected, "--help"}, path
        [usage] = [line for line in lines if line.startswith(f"Usage: {path} ")]
        arguments = [p for p in command.params if isinstance(p, click.Argument)]
        assert all(p.make_metavar(click.Context(command)) in usage for p in arguments), path


def words(line: str) -> list[str]:
    """Return the spellings of an option in its line of a help text."""
    spellings = re.split(r"  +", line.strip())[0]
    return re.findall(r"(?<![\w-])--?[a-z][a-z-]*", spellings)


def section_of(schema: Any, root: dict[str, Any]) -> dict[str, Any] | None:
    """Return the schema of a mapping with its own keys, None for any other value."""
    for choice in [schema, *schema.get("anyOf", ())] if isinstance(schema, dict) else []:
        found = root["$defs"][choice["$ref"].removeprefix("#/$defs/")] if "$ref" in choice else {}
        # host:port, package.module:Name, a file of a certificate and growing waits are values
        if not {"host", "handler", "certificate", "factor"} & set(
            found.get("properties", ("host",))
        ):
            return dict(found)
    return None


def keys(schema: dict[str, Any], root: dict[str, Any], prefix: str = "") -> set[str]:
    """Return the keys of a JSON schema as the page writes them."""
    found = set()
    for name, value in schema["properties"].items():
        key = f"{prefix}{name}"
        if section := section_of(value, root):
            found |= keys(section, root, f"{key}.")
            continue
        found.add(key)
        for inner, each in (("[]", "items"), (".KEY", "additionalProperties")):
            if section := section_of(value.get(each), root):
                found |= keys(section, root, f"{key}{inner}.")
    return found


def table(made: Path, name: str) -> dict[str, str]:
    """Return key and default of each row of a table."""
    text = sections(made / "reference" / "config.md")[name]
    found = re.findall(r"^\| `(\S+)` \| (.+?) \| .+\|$", text, re.MULTILINE)
    assert len(dict(found)) == len(found), "no key stands twice"
    return dict(found)


@pytest.mark.filterwarnings("ignore::pydantic.json_schema.PydanticJsonSchemaWarning")
@pytest.mark.parametrize("name", MODELS)
def test_every_key_stands_in_the_table(made: Path, name: str) -> None:
    schema = MODELS[name].model_json_schema(mode="validation")
    assert set(table(made, name)) == set(keys(schema, schema))


@pytest.mark.parametrize("name", MODELS)
def test_the_defaults_of_the_table_are_the_defaults(made: Path, name: str, tmp_path: Path) -> None:
    """A file with each default as printed means the same as an empty one."""
    data: dict[str, Any] = {}
    inside: dict[str, dict[str, Any]] = {}  # a list's first entry: its keys are in the table
    for key, default in table(made, name).items():
        if default in ("computed", "required") or ".KEY." in key:
            continue
        path, _, last = key.rpartition(".")
        lists = (part.removesuffix("[]") for part in path.split(".") if part.endswith("[]"))
        if any(name not in inside for name in lists):
            continue  # a list that is empty by default
        section: dict[str, Any] = data
        for part in filter(None, path.split(".")):
            bare = part.removesuffix("[]")
            section = inside[bare] if bare != part else section.setdefault(part, {})
        value = yaml.safe_load(default.strip("`"))
        if value == [{}]:
            inside[last] = value[0]
        section[last] = value
    file = tmp_path / name
    file.write_text(yaml.safe_dump(data), encoding="utf-8")
    empty = MODELS[name].model_validate({}, context={"folder": tmp_path})
    assert load(file, MODELS[name]) == empty


def test_required_is_said(made: Path) -> None:
    assert table(made, "smtpd.yaml")["metadata.KEY.from"] == "required"
