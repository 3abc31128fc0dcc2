"""Every command that a page, an alert, a hint or a message names is there, with its options."""

from __future__ import annotations

import re

import click
import pytest

from queued.cli.options.lazy_group import LazyGroup
from queued.cli.quarantine_retention import main as quarantine_retention
from queued.cli.queuectl import main as queuectl
from queued.daemon.queued import main as queued
from smtpd.cli import main as smtpd
from tests.support.daemons import ROOT

PROGRAMS: dict[str, click.Command] = {
    "queuectl": queuectl,
    "queued": queued,
    "smtpd": smtpd,
    "quarantine-retention": quarantine_retention,
}
_NAMED = re.compile(rf"`((?:{'|'.join(PROGRAMS)}) [^`]+)`")
_OPTION = re.compile(r"--?[a-z][a-z-]*")
_COMMAND = re.compile(r"[a-z][a-z-]*")
DECISIONS = "docs/decisions"
"""Pages that say what was rejected, so they name commands that there are not."""


def places() -> dict[str, list[str]]:
    """Return the commands that each file names."""
    found: dict[str, list[str]] = {}
    folders = (
        "docs",
        "etc",
        "packaging",
        "pgmta",
        "pgmta_features",
        "queued",
        "smtpd",
        "sql",
        "examples",
    )
    files = [path for folder in folders for path in sorted((ROOT / folder).rglob("*"))]
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *files]:
        name = str(path.relative_to(ROOT))
        if path.suffix in (".md", ".yaml", ".py", ".sql", "") and path.is_file():
            if name.startswith(DECISIONS) or "__pycache__" in name:
                continue
            # a line break in a text, or between two parts of a string, is a blank
            text = re.sub(r'"?\s*\n\s*(?:# )?f?"?', " ", path.read_text(encoding="utf-8"))
            if commands := _NAMED.findall(text):
                found[name] = commands
    return found


def fault(text: str) -> str:
    """Return what is wrong with a command, '' if it is there."""
    program, *words = text.split()
    command = PROGRAMS[program]
    options = {"--help", "--version"}
    if isinstance(command, LazyGroup) and (form := command.form(words)):
        options.add(form.rpartition(" ")[2])
        words[0] = form
    for word in words:
        options |= {name for p in command.params for name in (*p.opts, *p.secondary_opts)}
        word = word.partition("=")[0].rstrip(",.;:")
        if isinstance(command, click.Group):
            if child := command.get_command(click.Context(command), word):
                command = child
                continue
            if _COMMAND.fullmatch(word):
                return f"{text}: there is no command {word}"
        if _OPTION.fullmatch(word) and word not in options:
            return f"{text}: {command.name} has no option {word}"
    return ""


@pytest.mark.parametrize(("place", "commands"), places().items(), ids=lambda each: str(each)[:60])
def test_each_command_is_there(place: str, commands: list[str]) -> None:
    assert [found for each in commands if (found := fault(each))] == []


def test_a_wrong_command_is_found() -> None:
    assert fault("queuectl list --due") == "queuectl list --due: list has no option --due"
    assert fault("queuectl lst") == "queuectl lst: there is no command lst"
    assert fault("queuectl hold --where CONDITION --reason TEXT") == ""
