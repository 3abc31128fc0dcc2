"""queuectl send: texts and files of options, and mistakes name the option and the way out."""

from __future__ import annotations

import json
from pathlib import Path

import psycopg
import pytest

from tests.support.queuectl import Command
from tests.support.rows import fetch

FROM = ("--from", "Shöp <shop@a.example>", "--to", "bob@b.example")
PARTS = (*FROM, "--subject", "x")
MISTAKES = [
    (("--to", "b@b.example", "--subject", "x"), "error: --from: it is missing"),
    ((*FROM, "--text", "x"), "error: --subject: it is missing"),
    ((*PARTS, "--param", "a=b"), "error: --param: it counts only with --template"),
    ((*FROM, "--template", "t"), "error: --from: it counts only without --template"),
    (("--template", "t", "--to", "a@b.example", "--to", "b@b.example"), "--to: a template is"),
    (("--template", "t", *FROM[2:]), "There is no template yet: queuectl template put"),
    (PARTS, "--text: there is neither body nor html. Give plain text, html or both\n"),
    ((*PARTS[:2], *PARTS[4:], "--text", "x"), "Give a mailbox in to, cc or bcc\n"),
    ((*FROM, "--subject", "a\nb", "--text", "x"), "--subject: it has a line end."),
    ((*PARTS, "--text", "@none"), "error: --text @none: No such file or directory\n"),
    ((*PARTS, "--text", "@odd"), "error: --text @odd: "),
    ((*PARTS, "--text", "x", "--attach", "none"), "error: --attach none: No such"),
    ((*PARTS, "--text", "x", "--at", "now"), "error: --at 'now': "),
    ((*PARTS, "--text", "x", "--at", "9999-12-01T09:00:00Z"), "--at: it is over 10 years"),
    ((*PARTS, "--text", "x", "--cc", "a@b.example, c@b.example"), "Each mailbox is bob@"),
    ((*PARTS, "--text", "x", "--header", "Date=x"), "--header: a field is reserved"),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_texts_and_files_become_parts(
    db: psycopg.Connection, command: Command, folder: Path
) -> None:
    (folder / "mail.html").write_text("<p>Grüße</p>", encoding="utf-8")
    for name in ("a.pdf", "a.tar.gz", "b:c"):
        (folder / name).write_bytes(b"\0")
    sent = command(
        "send", *FROM, "--subject", "x", "--text", "@-", "--html", "@mail.html",
        "--header", "X-A=b=c", "--attach", "a.pdf", "--attach", "a.tar.gz", "--attach", "b:c",
        "--attach", "a.pdf:text/plain", "--at", "2035-01-31T09:30:00Z", "--json",
        given="Grüße\n",
    )  # fmt: skip
    number = json.loads(sent.stdout)["id"]
    params, tail, sender, status = fetch(
        db,
        "SELECT params, body, sender, status FROM messages AS m JOIN queue ON message_id = m.id"
        " WHERE m.id = %s",
        number,
    )
    assert (params["body"], params["html"]) == ("Grüße\n", "<p>Grüße</p>")
    assert params["from"] == ["Shöp", "shop@a.example"]
    assert params["headers"] == {"X-A": "b=c"}
    assert (sender, status) == ("shop@a.example", "SCHEDULED")
    types = [line for line in tail.split(b"\r\n") if line.startswith(b"Content-Type: ")]
    assert types == [
        f"Content-Type: {each}".encode()
        for each in ("application/pdf", *["application/octet-stream"] * 2, "text/plain")
    ]


def test_a_mistake_names_its_option(db: psycopg.Connection, command: Command, folder: Path) -> None:
    (folder / "odd").write_bytes(b"\xff")
    for words, said in MISTAKES:
        refused = command("send", *words)
        assert (refused.exit_code, refused.stdout) == (2, ""), words
        assert said in refused.stderr, words
    assert fetch(db, "SELECT count(*) FROM messages") == (0,)
