"""Each command and option of smtpd, queued and queuectl is in an example or how-to of docs."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click

from queued.cli.queuectl import main as queuectl
from queued.daemon.queued import main as queued
from smtpd.cli import main as smtpd
from tests.support.daemons import ROOT

PAGES = [page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "decisions"]
TEXT = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)


def commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    """Yield each command that is no group, with its words."""
    if not isinstance(command, click.Group):
        yield path, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        if below and not below.hidden:
            yield from commands(below, f"{path} {name}")


def wrong(words: list[str], command: click.Command) -> str:
    """Return the first word that is no command or option; '' if all are."""
    context = click.Context(command)
    for word in words:
        if isinstance(command, click.Group) and not word.startswith("-"):
            below = command.get_command(context, word)
            if word.isupper() or "|" in word or "…" in word:
                return ""  # any
            if not below:
                return word
            command, context = below, click.Context(below, parent=context)
        elif word.startswith("-") and word.strip("-"):
            known = {name for option in command.get_params(context) for name in
                     (*option.opts, *option.secondary_opts)}  # fmt: skip
            name = word.partition("=")[0]
            if name not in known and not (name[:2] in known and name[1] != "-"):
                return word
    return ""


def test_commands_within_sentences_have_their_options() -> None:
    groups = {"queuectl": queuectl, "queued": queued, "smtpd": smtpd}
    found = []
    for page in PAGES:
        text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
        for code in re.findall(r"`((?:queuectl|queued|smtpd) [^`]+)`", text):
            name, *words = code.split()
            if word := wrong(words, groups[name]):
                found.append(f"{page.name}: {' '.join(code.split())}: {word}")
    assert found == []


def test_each_command_and_option_has_an_example() -> None:
    missing = []
    for name, group in (("queuectl", queuectl), ("queued", queued), ("smtpd", smtpd)):
        for path, command in commands(group, name):
            missing += [path] if path not in TEXT else []
            for option in command.params:
                if not isinstance(option, click.Option) or option.hidden:
                    continue
                names = "|".join(map(re.escape, option.opts))
                if not re.search(rf"(?<![\w-])(?:{names})(?![\w-])", TEXT):
                    missing.append(f"{path} {option.opts[-1]}")
    assert missing == []
