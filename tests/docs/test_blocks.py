"""Every block of commands in README and docs runs as printed, or has a mark with its reason.

The mark is the line before the block: `<!-- not run: REASON -->`, or `<!-- run: TEST -->` if the
test with that path, or of that name in a test, runs it. All other blocks run here.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

import click
import psycopg
import pytest
import yaml
from click.testing import CliRunner

from queued.cli.quarantine_retention import main as quarantine_retention
from queued.cli.queuectl import main as queuectl
from queued.daemon.queued import main as queued
from smtpd.cli import main as smtpd
from tests.docs.test_templates import pattern
from tests.support.daemons import ROOT
from tests.support.dkim import Keys
from tests.support.name_server import serving_names
from tests.support.rows import message, row
from tests.support.system import System

PROGRAMS: dict[str, click.Command] = {
    "queuectl": queuectl,
    "queued": queued,
    "smtpd": smtpd,
    "quarantine-retention": quarantine_retention,
    "scripts/quarantine-retention": quarantine_retention,
}
PASSWORD = "correct horse battery staple\n"
_BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>.*?) -->\n)?^```(?P<kind>sh|console)\n(?P<text>.*?)^```", re.M | re.S
)
_REASON = re.compile(r"not run: \w.*")


class Block(NamedTuple):
    """A block of a page, and its mark, if it has one."""

    page: str
    line: int
    kind: str
    text: str
    mark: str | None


def blocks() -> list[Block]:
    found = []
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    for page in pages:
        text = page.read_text(encoding="utf-8")
        for each in _BLOCK.finditer(text):
            line = text[: each.start()].count("\n") + 1
            name = str(page.relative_to(ROOT))
            found.append(Block(name, line, each["kind"], each["text"], each["mark"]))
    return found


ALL = blocks()
OURS: dict[str, list[Block]] = {}
for _block in ALL:
    if _block.mark is None:
        OURS.setdefault(_block.page, []).append(_block)


def test_marks_have_a_reason_or_a_test() -> None:
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    wrong = []
    for block in ALL:
        mark = block.mark
        if mark is None or _REASON.fullmatch(mark):
            continue
        name = mark.removeprefix("run: ")
        file = ROOT / name
        if file.is_file():
            good = Path(block.page).name in file.read_text()
        else:
            good = mark.startswith("run: ") and (
                f'"{name}"' in tests or f"<!-- {mark} -->" in tests
            )
        if not good:
            wrong.append((block.page, block.line, mark))
    assert wrong == []


def write_files(folder: Path, uri: str, name_server: str, key: dict[str, str]) -> None:
    base = {"database": {"uri": uri}, "hostname": "mx.example.org"}
    files = {
        "queued": {
            "environment": base,
            "routes": {"*": "127.0.0.1:1"},
            "delivery": {"dns": {"servers": [name_server]}},
            "signing": {"keys": [key]},
        },
        "smtpd": {
            "environment": base,
            "listen": [{"address": "127.0.0.1", "port": 2599, "role": "submission"}],
        },
    }
    for name, settings in files.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(settings))


@pytest.fixture
def place(
    tmp_path: Path, database: str, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> Iterator[System]:
    """A folder with the files that commands read, a queue with the rows of the pages, and DNS."""
    (tmp_path / "etc").mkdir()
    keys = Keys(tmp_path)
    key = keys.entry("s2026", domain="example.org")
    names = serving_names({name: {"TXT": [f'"{text}"']} for name, text in keys.records.items()})
    (tmp_path / "mail.eml").write_text(
        "From: shop@example.org\nTo: bob@example.com\nSubject: x\n\nx\n"
    )
    (tmp_path / "old_list.csv").write_text("address\neve@example.com\n")
    for name in ("logo.png", "receipt.pdf"):
        (tmp_path / name).write_bytes(b"x")
    message(db, 1000042)
    for sender, recipient in (
        ("shop@example.org", "bob@example.com"),
        *(("news@customer.example", f"{name}@shop.example") for name in "abc"),
        *((f"{name}@suspect.example", f"{name}@shop.example") for name in "abc"),
    ):
        row(db, 1000042, sender=sender, recipient=recipient, domain=recipient.partition("@")[2])

    db.execute(
        "INSERT INTO rules (name, action, condition, reason, origin, created_by)"
        " VALUES ('hold_all', 'hold', 'false', 'delivery.hold_all', 'worker', 'queued');"
        " SELECT suppress('mallory@example.com', reason => 'complained')"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PGMTA_CONFIG", str(tmp_path / "etc"))  # never /etc/pgmta of this host
    with names as server:
        write_files(tmp_path / "etc", database, server.where, key)
        yield System(tmp_path, database)


@contextmanager
def terminal() -> Iterator[None]:
    """Let commands ask, as on a terminal."""
    with pytest.MonkeyPatch.context() as patch:
        ours = "click.testing._NamedTextIOWrapper.isatty"
        patch.setattr(ours, lambda stream: stream.name == "<stdin>", raising=False)
        yield


def run(block: Block, problems: list[str]) -> None:
    """Run the commands of a block, and note those that fail or print something else."""
    text = block.text.replace("\\\n", " ")
    shown: list[tuple[str, str | None]]
    if block.kind == "console":
        shown = re.findall(r"^\$ (.*)\n((?:[^$].*\n)*)", text, re.MULTILINE)
    else:
        shown = [(line, None) for line in text.splitlines() if line.strip()]
    for line, output in shown:
        words = shlex.split(line, comments=True)
        program = PROGRAMS.get(words[0].removeprefix(".venv/bin/")) if words else None
        where = f"{block.page}:{block.line}: {line}"
        elsewhere = "/etc/pgmta" in line or words[1:2] in (["init"], ["run"], ["web"])
        words, target = (words[:-2], words[-1]) if words[-2:-1] == [">"] else (words, "")
        if program is None or elsewhere or {"&&", "|", ">"} & set(words):
            problems.append(f"{where}: no command that runs here")
            continue
        answers = PASSWORD * 2 if words[1:2] == ["user"] else "y\n"
        with terminal() if output is None else nullcontext():
            result = CliRunner().invoke(program, words[1:], input=answers)
        if target:
            Path(target).write_text(result.stdout)
        if output is None and result.exit_code and "nothing found" not in result.output:
            problems.append(f"{where}: {result.exit_code} {result.output[-300:]}")
        elif output is not None:
            expected = "".join(map(pattern, output.splitlines()))
            if not re.fullmatch(expected, result.output):
                problems.append(f"{where}: it prints\n{result.output}")


@pytest.mark.parametrize("page", OURS)
def test_blocks_run(page: str, place: System) -> None:
    problems: list[str] = []
    for block in OURS[page]:
        run(block, problems)
    assert not problems, "\n".join(problems)
