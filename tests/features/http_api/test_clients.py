"""The programs of docs/programs/http.md run as printed: send, schedule, cancel, ask, page."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import psycopg
import pytest

from tests.features.http_api.served import ServedApi
from tests.support.daemons import ROOT
from tests.support.queuectl import queuectl
from tests.support.rows import column

_PAGE = ROOT / "docs" / "programs" / "http.md"
_SECONDS = 100  # that Go may compile on a loaded machine


class Client(NamedTuple):
    """A language: its block of the page, what runs a file of it, and the mails that there are."""

    kind: str
    command: list[str]
    mails: int = 300


def block(kind: str, beginning: str = "") -> str:
    """The block of a language that begins with a word."""
    text = _PAGE.read_text(encoding="utf-8")
    found: list[str] = re.findall(rf"^```{kind}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return next(each for each in found if each.startswith(beginning))


def run(api: ServedApi, token: str, folder: Path, *command: str) -> str:
    """Run a program; return what it says."""
    variables = {"PGMTA_URL": api.url, "PGMTA_TOKEN": token, "GOCACHE": str(folder)}
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **variables}, capture_output=True, text=True,
        check=False, timeout=_SECONDS,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


@pytest.mark.parametrize(
    "client",
    [
        pytest.param(Client("sh", ["bash"]), marks=pytest.mark.needs("curl"), id="curl"),
        pytest.param(Client("python", [sys.executable], 10_000), id="python"),
        pytest.param(Client("js", ["node"]), marks=pytest.mark.needs("nodejs"), id="node"),
        pytest.param(Client("php", ["php"]), marks=pytest.mark.needs("php-cli"), id="php"),
        pytest.param(
            Client("go", ["go", "run"]),
            marks=[pytest.mark.needs("golang-go"), pytest.mark.slow],
            id="go",
        ),
    ],
)
def test_a_shop_in_each_language(
    api: ServedApi, database: str, db: psycopg.Connection, tmp_path: Path, client: Client
) -> None:
    token = _key_of_the_page(database, tmp_path)
    mail = {"sender": "shop@example.org", "to": ["a@b.example"], "subject": "s", "body": "b"}
    for start in range(0, client.mails, 1000):
        some = {"messages": [mail] * min(1000, client.mails - start)}
        assert api.send("POST", "/v1/messages/batch", token, some).status == 202
    program = tmp_path / f"shop.{client.kind}"
    program.write_text(block(client.kind, "post()" if client.kind == "sh" else ""))
    lines = run(api, token, tmp_path, *client.command, program.name).splitlines()

    ids = column(db, "SELECT id FROM messages ORDER BY id")
    assert lines[0] == f"order {ids[client.mails]}"
    if client.kind != "sh":
        assert lines[1].startswith("422 /subjekt "), lines
        assert "subject" in lines[1]
    assert any("/messages/1/to" in line for line in lines), lines
    assert lines[-3].endswith("1"), lines
    # the order, two of the sale, and the mail that was cancelled
    assert lines[-2:] == ["queued", f"total {client.mails + 4}"]
    assert len(ids) == client.mails + 3  # the cancelled one is in the log alone


@pytest.mark.needs("curl")
def test_the_lines_of_the_page(
    api: ServedApi, database: str, db: psycopg.Connection, tmp_path: Path
) -> None:
    token = _key_of_the_page(database, tmp_path)
    (tmp_path / "receipt.pdf").write_bytes(b"%PDF-1.4")
    (tmp_path / "receipt.eml").write_text("From: shop@example.org\nSubject: Receipt\n\nPaid.\n")
    for beginning, number in (('curl -sS "$PGMTA_URL/v1/messages" -H', 1), ("curl", 2)):
        found = [each for each in _blocks() if each.startswith(beginning)]
        said = run(api, token, tmp_path, "bash", "-c", found[number - 1])
        assert len(re.findall(r'\{"id":"\d+"\}', said)) == number, said
    assert column(db, "SELECT recipient FROM queue ORDER BY id") == [
        "ann@example.com", "ann@example.com", "ann@example.com", "bob@example.com",
    ]  # fmt: skip


def test_the_commands_of_the_page(database: str, db: psycopg.Connection, tmp_path: Path) -> None:
    _run_commands(database, tmp_path, *block("sh", "queuectl apikey").splitlines())
    assert column(db, "SELECT name FROM api_keys WHERE revoked_at IS NOT NULL") == ["shop"]


def _key_of_the_page(database: str, folder: Path) -> str:
    """Make the key of the page as the page says; return its token."""
    said = _run_commands(database, folder, block("sh", "queuectl apikey").splitlines()[0])
    return next(word for word in said.split() if word.startswith("pgmta_"))


def _run_commands(database: str, folder: Path, *lines: str) -> str:
    config = folder / "queued.yaml"
    config.write_text(json.dumps({"environment": {"database": {"uri": database}}}))
    said = ""
    for line in lines:
        done = queuectl(config, *shlex.split(line, comments=True)[1:])
        assert done.exit_code == 0, (line, done.output)
        said += done.output
    return said


def _blocks() -> list[str]:
    text = _PAGE.read_text(encoding="utf-8")
    return re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
