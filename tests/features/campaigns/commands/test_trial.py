"""`queuectl campaign test`: one real mail, whose outcome is the exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from click.testing import Result

from tests.features.campaigns.commands.site import Site
from tests.features.campaigns.commands.test_look import begin_worker
from tests.scenarios.test_composed import body, read
from tests.support.authority import Authority
from tests.support.nexthop import EXTENSIONS, NextHop, as_usual, at
from tests.support.rows import column
from tests.support.system import System
from tests.support.waiting import until

LOGIN = (*EXTENSIONS, "AUTH PLAIN")


def queued(system: System, hop: NextHop, authority: Authority) -> None:
    """Start a queued whose route for the credential ses-1 logs in to the hop."""
    secret = system.folder / "secret"
    secret.write_text("kE7-secret\n")
    secret.chmod(0o600)
    to = [{"host": "localhost", "port": hop.port}]
    shaping: dict[str, Any] = {
        "logins": {"ses": {"user": "u", "password_file": str(secret)}},
        "routes": [{"metadata.credential": "ses-1", "to": to, "login": "ses"}],
    }
    (system.folder / "shaping.yaml").write_text(yaml.safe_dump(shaping))
    system.queued(shaping="shaping.yaml", delivery={"tls": {"ca": str(authority.path)}})


def tried(site: Site, *words: str) -> tuple[Result, dict[str, Any]]:
    result = site.run("test", "news", *words, "--json")
    return result, json.loads(result.stdout) if result.stdout else {}


@pytest.mark.slow
def test_a_right_and_a_wrong_credential(
    site: Site, system: System, db: psycopg.Connection, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    tls = authority.issue(["localhost"]).context()
    hop = system.hop(at("AUTH", "535 5.7.8 wrong password"), LOGIN, tls)
    queued(system, hop, authority)
    site.imported("recipient,name,city\na@x.example,Ann,Kiel\nb@x.example,Bob,Ulm\n")
    result, found = tried(site, "me@own.example")
    assert result.exit_code == 1, result.output
    assert (found["code"], found["reply"]) == (535, "5.7.8 wrong password"), found
    assert column(db, "SELECT status FROM queue") == []
    hop.script = as_usual
    result, found = tried(site, "me@own.example", "--number", "2", "--param", "city=Köln")
    assert (result.exit_code, found["state"]) == (0, "delivered"), result.output
    [mail] = [read(each.content) for each in hop.transactions]
    assert (mail["To"], mail["Subject"]) == ("me@own.example", "Hello Bob")
    assert body(mail, "plain") == "Dear Bob in Köln, you are me@own.example.\n"
    assert column(db, "SELECT DISTINCT state FROM campaign_recipients") == ["unsent"]
    # and now all of them
    site.said("start", "news")
    until(lambda: [row[2] for row in site.exported()[1:]] == ["sent", "sent"], describe="all sent")
    mails = [read(each.content) for each in hop.transactions[1:]]
    assert {str(mail["To"]): str(mail["Subject"]) for mail in mails} == {
        "a@x.example": "Hello Ann", "b@x.example": "Hello Bob",
    }  # fmt: skip


def test_without_queued_or_with_wrong_words(site: Site, db: psycopg.Connection) -> None:
    result, _ = tried(site, "me@own.example")
    assert (result.exit_code, result.stderr) == (
        1, "error: news has no recipient 1; import some first\n",
    )  # fmt: skip
    result, _ = tried(site, "no-address")
    assert (result.exit_code, result.stderr) == (2, "error: no domain in 'no-address'\n")
    result, _ = tried(site, "me@own.example", "--param", "nam=Ann")
    assert "--param nam: the template has no such word; did you mean 'name'?" in result.stderr
    words = ["--param", "name=Ann", "--param", "city=Kiel"]
    result, _ = tried(site, "me@müller.example", *words)
    none = "error: no worker that delivers runs (`queuectl workers`): start queued\n"
    assert (result.exit_code, result.stderr) == (1, none)
    begin_worker(db)
    result, _ = tried(site, "me@müller.example", *words, "--timeout", "0")
    assert result.exit_code == 1
    assert "has no outcome within 0 s, and was cancelled" in result.stderr
    assert column(db, "SELECT status FROM queue") == []
    result, _ = tried(site, "me@own.example", "--param", "name=a\nb", "--param", "city=")
    assert "name: a word of a header field: it has a line end" in result.stderr
    assert column(db, "SELECT count(*) FROM audit WHERE action = 'campaign test'") == [1]
