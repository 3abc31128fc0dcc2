"""queuectl send: texts and files of options, and options that do not go together."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
import yaml
from click.testing import CliRunner, Result

from queued.cli.queuectl import main
from tests.support.rows import fetch

type Send = Callable[..., Result]

FROM = ("--from", "Shöp <shop@a.example>", "--to", "bob@b.example")


@pytest.fixture
def send(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Send:
    """Runs the command in an empty folder; the first argument is standard input."""
    monkeypatch.chdir(tmp_path)
    config = tmp_path / "queued.yaml"
    config.write_text(yaml.safe_dump({"environment": {"database": {"uri": database}}}))

    def run(given: str, *words: str) -> Result:
        return CliRunner().invoke(main, ["send", "-c", str(config), *words], input=given)

    return run


def test_texts_and_files_become_parts(send: Send, db: psycopg.Connection, tmp_path: Path) -> None:
    (tmp_path / "mail.html").write_text("<p>Grüße</p>", encoding="utf-8")
    for name in ("a.pdf", "a.tar.gz", "b:c"):
        (tmp_path / name).write_bytes(b"\0")
    sent = send(
        "Grüße\n", *FROM, "--subject", "x", "--text", "@-", "--html", "@mail.html",
        "--header", "X-A=b=c", "--attach", "a.pdf", "--attach", "a.tar.gz", "--attach", "b:c",
        "--attach", "a.pdf:text/plain", "--at", "2035-01-31T09:30:00Z", "--json",
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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--to", "b@b.example", "--subject", "x"), "--from: it is missing"),
        ((*FROM, "--text", "x"), "--subject: it is missing"),
        ((*FROM, "--subject", "x", "--param", "a=b"), "--param: it counts only with --template"),
        ((*FROM, "--template", "t"), "--from: it counts only without --template"),
        (("--template", "t", "--to", "a@b.example", "--to", "b@b.example"), "--to: a template is"),
        ((*FROM, "--subject", "x", "--text", "@none"), "--text @none: "),
        ((*FROM, "--subject", "x", "--text", "@odd"), "--text @odd: "),
        ((*FROM, "--subject", "x", "--text", "x", "--attach", "none"), "--attach none: No such"),
        ((*FROM, "--subject", "x", "--text", "x", "--at", "now"), "--at 'now': "),
    ],
)
def test_what_does_not_go_together_is_named(
    send: Send, db: psycopg.Connection, words: tuple[str, ...], said: str
) -> None:
    Path("odd").write_bytes(b"\xff")
    refused = send("", *words)
    said = f"error: {said}"
    assert (refused.exit_code, refused.stderr[: len(said)]) == (2, said)
    assert fetch(db, "SELECT count(*) FROM messages") == (0,)
