"""`queuectl webhook` and `doctor`: the block of docs/programs/webhooks.md, and mistakes."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from click.testing import CliRunner, Result

from pgmta_features.webhooks.doctor_check import checks
from queued.cli.queuectl import main
from tests.features.events.event_log import number, send
from tests.features.providers.scripted_server import said
from tests.features.webhooks.conftest import Add
from tests.features.webhooks.receiver import Receiver
from tests.sql.test_roles import acting
from tests.support.daemons import ROOT
from tests.support.operating import diagnosed
from tests.support.rows import column, fetch

PAGE = ROOT / "docs" / "programs" / "webhooks.md"


class Operator:
    """Runs `queuectl webhook` as a login with the role pgmta_operator."""

    def __init__(self, folder: Path, database: str, settings: dict[str, Any]) -> None:
        self.database = acting(database, "pgmta_operator")
        self._file = folder / "queued.yaml"
        environment = {"environment": {"database": {"uri": self.database}}}
        self._file.write_text(yaml.safe_dump(environment | settings))

    def __call__(self, *words: str) -> Result:
        return CliRunner().invoke(main, ["webhook", *words, "-c", str(self._file)])

    def done(self, *words: str) -> str:
        result = self(*words)
        assert result.exit_code == 0, (words, result.output)
        return result.output

    def refused(self, *words: str) -> str:
        result = self(*words)
        assert result.exit_code in (1, 2), (words, result.output)
        return result.output


@pytest.fixture
def operator(tmp_path: Path, database: str, settings: dict[str, Any]) -> Operator:
    return Operator(tmp_path, database, settings)


def test_the_commands_of_the_page_work(operator: Operator, db: psycopg.Connection) -> None:
    (block,) = re.findall(r"test_commands.py -->\n```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    printed = {}
    for line in block.splitlines():
        words = shlex.split(line, comments=True)[2:]
        printed[" ".join(words[:2])] = operator.done(*words)
    assert re.search(r"secret  whsec_\S{44}\n", printed["add shop"])
    assert re.search(r"secret  whsec_\S{44}\n", printed["rotate shop"])
    assert "--force" in operator.refused("rotate", "shop")
    assert "whsec_" in operator.done("rotate", "shop", "--force")
    assert "https://shop.example/mail-events" in printed["show shop"]
    assert fetch(db, "SELECT name, batch FROM pgmta.webhooks") == ("shop", 500)
    actions = column(db, "SELECT action FROM pgmta.audit WHERE role = 'pgmta_operator'")
    assert len(actions) == len(block.splitlines()) - 2 + 1  # list and show change nothing


def test_output_for_machines_has_no_secret_but_once(operator: Operator) -> None:
    made = json.loads(operator.done("add", "shop", "https://shop.example/", "--json"))
    assert made["secret"].startswith("whsec_")
    for words in (
        ("list", "--json"), ("show", "shop", "--json"), ("show", "shop"), ("list",),
        ("set", "shop", "--batch", "5", "--json"), ("disable", "shop", "--json"),
        ("enable", "shop", "--json"), ("replay", "shop", "--since", "3h", "--json"),
    ):  # fmt: skip
        found = operator.done(*words)
        assert "whsec_" not in found
        assert "key:webhook:" not in found
        if "--json" in words:
            assert f'"id": "{made["id"]}"' in found, words


def test_list_says_that_events_wait_for_their_numbers(
    operator: Operator, db: psycopg.Connection
) -> None:
    operator.done("add", "shop", "https://shop.example/")

    def lag() -> float | None:
        (row,) = json.loads(operator.done("list", "--json"))
        found: float | None = row["lag"]
        return found

    assert lag() is None
    send(db)
    assert (lag() or 0) > 0
    number(db)
    assert (lag() or 0) > 0
    db.execute("UPDATE pgmta.webhooks SET cursor = pgmta.events_end()")
    assert lag() is None


def test_mistakes_are_named_and_change_nothing(operator: Operator, db: psycopg.Connection) -> None:
    operator.done("add", "shop", "https://shop.example/")
    before = fetch(db, "SELECT * FROM pgmta.webhooks")
    for words, named in {
        ("add", "shop", "https://shop.example/"): "there is a webhook shop already",
        ("add", "a b", "https://shop.example/"): "no name",
        ("add", "b", "ftp://shop.example/"): "URL: no URL",
        ("add", "b", "https://s.example/", "--kind", "bounce"): "--kind 'bounce' is no kind",
        ("add", "b", "https://s.example/", "--metadata", "x"): "expected key=value",
        ("add", "b", "https://s.example/", "--secret", "x"): "webhooks.secrets has no such name",
        ("add", "b", "https://s.example/", "--owner", "x"): "x",
        ("show", "shp"): "did you mean 'shop'",
        ("set", "shop"): "nothing to change",
        ("replay", "shop"): "give one of --since, --event and --set-aside",
        ("replay", "shop", "--event", "1-1"): "there is no event",
        ("replay", "shop", "--since", "2999-01-01 08:00"): "that is to come",
        ("test", "shop", "--secret", "x"): "No such option",
    }.items():  # fmt: skip
        assert named in operator.refused(*words), words
    assert fetch(db, "SELECT * FROM pgmta.webhooks") == before
    # the file may get the network later
    assert "webhooks.networks lacks" in operator.done("add", "inner", "https://10.0.0.1/x")


def test_a_secret_of_a_file(
    tmp_path: Path, database: str, db: psycopg.Connection, receiver: Receiver
) -> None:
    file = tmp_path / "shop.secret"
    file.write_text("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n")
    file.chmod(0o600)
    section = {"secrets": {"shop": str(file)}, "networks": ["127.0.0.0/8"]}
    operator = Operator(tmp_path, database, {"webhooks": section})
    assert "webhooks.keys is empty" in operator.refused("add", "other", receiver.url())
    assert "whsec_" not in operator.done("add", "shop", receiver.url(), "--secret", "shop")
    assert "204" in operator.done("test", "shop")
    assert receiver.events()[0]["type"] == "mail.test"
    receiver.answering["/"] = lambda _: said("401 Unauthorized")
    assert "401 Unauthorized" in operator.refused("test", "shop")
    for text in ("whsec_x", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", ""):
        file.write_text(text)
        assert "has no secret" in operator.refused("test", "shop")


def test_doctor_names_endpoints_that_get_nothing(
    operator: Operator, db: psycopg.Connection, add: Add
) -> None:
    for name in ("failing", "once", "suspended", "good", "alone"):
        add("https://shop.example/", name)
    db.execute(
        "INSERT INTO pgmta.daemons VALUES ('me', 'queued', 'h', 1, '1', '1');"
        "UPDATE pgmta.webhooks SET leased_by = 'me' WHERE name <> 'alone';"
        " UPDATE pgmta.webhooks SET state = 'failing', reason = '503 x', failures = 3,"
        " failing_since = now() - interval '40 s' WHERE name = 'failing';"
        " UPDATE pgmta.webhooks SET state = 'failing', failures = 2, failing_since = now() - "
        "interval '40 s' WHERE name = 'once';"
        "INSERT INTO pgmta.webhook_failures SELECT id, '7-1', 'bounced', 5, '1.1.0', now(), '422 x'"
        " FROM pgmta.webhooks WHERE name = 'good';"
        " UPDATE pgmta.webhooks SET state = 'suspended', reason = '404 x' WHERE name = 'suspended'"
    )

    found = [
        f"{each.severity}: {each.finding}"
        for each in diagnosed(operator.database, lambda e: _check(e))
    ]
    assert found == [
        "warning: webhook failing has failed for 40s: 503 x",
        "error: webhook suspended is suspended: 404 x",
        "warning: webhook good has refused 1 events, which were set aside",
        "warning: no queued posts for webhook alone",
    ]
    shown = operator.done("show", "good")
    assert re.search(r"set aside  7-1 bounced of message 5, 20.*: 422 x\n", shown)
    assert "`queuectl webhook replay good --set-aside`" in shown


def test_doctor_names_endpoints_without_the_subscription(
    operator: Operator, db: psycopg.Connection, add: Add
) -> None:
    add("https://shop.example/")
    db.execute("ALTER TABLE pgmta.event_subscriptions DISABLE TRIGGER webhooks_subscribed")
    db.execute("SELECT pgmta.events_unsubscribe('webhooks')")
    (found,) = diagnosed(operator.database, lambda e: _check(e))
    assert found.finding == "webhook shop gets no events: its subscription is missing"
    assert found.remedy
    db.execute(found.remedy.partition("`")[2].partition("`")[0].encode())
    (found,) = diagnosed(operator.database, lambda e: _check(e))
    assert found.finding == "no queued posts for webhook shop"


async def _check(examination: Any) -> Any:
    found = await checks(examination)
    async for each in found["webhooks"]():
        yield each
