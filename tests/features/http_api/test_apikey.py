"""`queuectl apikey`, and what a process of the API sees of it."""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path

import psycopg
import pytest
import yaml
from psycopg.conninfo import make_conninfo

from tests.features.http_api.served import ServedApi, make_key, serving_api
from tests.support.queuectl import Command, queuectl
from tests.support.rows import column, message, row
from tests.support.waiting import SLACK, until


@pytest.fixture
def run(database: str, tmp_path: Path) -> Command:
    """queuectl of an operator."""
    uri = make_conninfo(database, options="-c role=pgmta_operator")
    config = tmp_path / "operator.yaml"
    config.write_text(yaml.safe_dump({"environment": {"database": {"uri": uri}}}))
    return partial(queuectl, config)


def status_of(api: ServedApi, token: str, **more: str) -> tuple[int, str]:
    """The status of an answer to a key, and the word of its problem."""
    answer = api.send("GET", "/v1/key", token, **more)
    return answer.status, answer.members.get("type", "").rpartition(":")[2]


def test_a_key_from_its_first_day_to_its_last(
    run: Command, db: psycopg.Connection, api: ServedApi
) -> None:
    made = run(
        "apikey", "new", "shop", "--scope", "send,messages", "--sender", "@shop.example",
        "--sender", "Bob@Example.org", "--tenant", "t1", "--sees", "tenant",
        "--credential", "ses-a", "--priorities", "3-7", "--json",
    )  # fmt: skip
    assert made.exit_code == 0, made.output
    token = json.loads(made.output)["token"]
    assert api.send("GET", "/v1/key", token).members == {
        "name": "shop", "scopes": ["messages", "send"], "tenant": "t1", "sees": "tenant",
        "senders": ["@shop.example", "Bob@example.org"], "credentials": ["ses-a"],
        "priorities": [3, 7],
    }  # fmt: skip
    assert token not in json.dumps(db.execute("SELECT row_to_json(a) FROM audit AS a").fetchall())

    def used() -> bool:
        [shown] = json.loads(run("apikey", "list", "--json").output)
        return shown["used_at"] is not None and shown["used_from"] == "127.0.0.1"

    until(used)
    changed = run("apikey", "set", "shop", "--scope", "messages", "--network", "192.0.2.0/24")
    assert changed.exit_code == 0
    until(lambda: status_of(api, token) == (403, "network-refused"))
    assert run("apikey", "set", "shop", "--any-network", "--expires", "in 1s").exit_code == 0
    until(lambda: status_of(api, token) == (401, "key-expired"))
    assert run("apikey", "set", "shop", "--never-expires").exit_code == 0
    until(lambda: status_of(api, token)[0] == 200)
    second = json.loads(run("apikey", "rotate", "shop", "--json").output)["token"]
    # the token in use doesn't end unawares
    assert "works until" in (again := run("apikey", "rotate", "shop")).output
    assert (again.exit_code, status_of(api, token)[0]) == (1, 200)
    forced = run("apikey", "rotate", "shop", "--force", "--json")
    third = json.loads(forced.output)["token"]
    until(lambda: status_of(api, token)[0] == 401)
    assert [status_of(api, each)[0] for each in (second, third)] == [200, 200]
    assert "works until" in run("apikey", "show", "shop").output
    last = json.loads(run("apikey", "rotate", "shop", "--overlap", "0s", "--json").output)["token"]
    until(lambda: status_of(api, third)[0] == 401)
    assert status_of(api, last)[0] == 200
    assert run("apikey", "set", "shop", "--credential", "").exit_code == 0
    assert "credentials  none\npriorities   3-7\n" in run("apikey", "show", "shop").output
    db.execute("SELECT events_subscribe('key:shop', 'reader')")
    db.execute("UPDATE messages SET submitted_by = 'key:shop' WHERE id = %s", (message(db, 1),))
    row(db, 1)
    db.execute(
        "INSERT INTO webhooks (name, viewer, url, secret, batch, cursor)"
        " VALUES ('thief', 'key:shop', 'https://x.example/', 'file:a', 1, '1.0.0')"
    )
    [gone] = json.loads(run("apikey", "revoke", "shop", "--json").output)
    assert [each["url"] for each in gone["webhooks"]] == ["https://x.example/"]
    assert (gone["waiting"], gone["subscribed"], gone["used_from"]) == (1, False, "127.0.0.1")
    assert column(db, "SELECT name FROM event_subscriptions") == []
    until(lambda: status_of(api, last) == (401, "key-refused"))
    # also that of a token that a rotation has ended, of which nothing but the name is told
    logged = api.events("an API key is refused")
    assert {each["key"] for each in logged} == {"shop"}
    assert not [each for each in (token, third, last) if each in json.dumps(logged)]
    [shown] = json.loads(run("apikey", "list", "--json").output)
    assert (shown["used_at"], shown["used_from"]) == (gone["used_at"], "127.0.0.1")
    secrets = json.loads(run("apikey", "show", "shop", "--json").output)["secrets"]
    assert (len(secrets), [each for each in secrets if each["holds"]]) == (4, [])
    assert "revoked" in run("apikey", "new", "shop", "--scope", "usage").output
    actions = db.execute("SELECT action, condition FROM audit ORDER BY id").fetchall()
    words = ["new", *["set"] * 3, *["rotate"] * 3, "set", "revoke"]
    assert [action for action, _ in actions] == [f"apikey {word}" for word in words]
    assert {name for _, name in actions} == {"shop"}


def test_webhooks_that_get_more_than_their_key_may_are_named(
    run: Command, db: psycopg.Connection
) -> None:
    make_key(db, tenant="a", sees="tenant")
    db.execute(
        "INSERT INTO webhooks (name, tenant, viewer, created_by, url, secret, batch, cursor)"
        " SELECT *, 'https://x.example/', 'file:a', 1, '1.0.0' FROM (VALUES"
        " ('own', 'a', 'key:shop', 'key:shop'), ('tenant', 'a', NULL, 'key:shop'),"
        " ('all', NULL, NULL, 'key:shop'), ('operator', 'a', 'key:shop', 'ops'),"
        " ('other', 'a', NULL, 'key:other')) AS made"
    )
    for options, named in {
        ("--sees", "all"): [],
        ("--sees", "tenant"): ["all"],
        ("--sees", "own"): ["tenant", "all"],
        ("--tenant", "b"): ["own", "tenant", "all", "operator"],
        ("--any-tenant",): ["tenant", "all"],
        ("--scope", "send", "--sees", "all"): ["own", "tenant", "all", "operator"],
    }.items():
        changed = json.loads(run("apikey", "set", "shop", *options, "--json").output)
        assert [each["name"] for each in changed["webhooks"]] == named, options
    assert "webhook      2 tenant at https://x.example/, " in run("apikey", "show", "shop").output


def test_a_revocation_holds_within_a_second_in_each_process(
    as_api: str, db: psycopg.Connection, tmp_path: Path
) -> None:
    token = make_key(db)
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    with serving_api(folders[0], as_api) as one, serving_api(folders[1], as_api) as two:
        for _ in range(3):
            assert [status_of(each, token)[0] for each in (one, two)] == [200, 200]
        db.execute("DELETE FROM api_secrets")
        revoked = time.monotonic()
        for each in (one, two):
            until(lambda each=each: status_of(each, token)[0] == 401)  # type: ignore[misc]
        # each look is of the last half second; a loaded machine may ask late
        assert time.monotonic() - revoked < 1 + SLACK


MISTAKES: list[tuple[list[str], str]] = [
    (["new", "shop"], "--scope is missing: give some of send,"),
    (["new", "shop", "--scope", "sned"], "did you mean 'send'?"),
    (["new", "shop", "--scope", "send"], "needs --sender or --any-sender"),
    (["new", "shop", "--scope", "all", "--sender", "@a.example"], "and --credential or"),
    (["new", "shop", "--scope", "send", "--sender", "shop"], "expected an address or @domain"),
    (["new", "Shop", "--scope", "usage"], "letters of lower case"),
    (["new", "shop", "--scope", "usage", "--network", "192.0.2.1/24"], "--network"),
    (["new", "shop", "--scope", "usage", "--expires", "2001-01-01"], "in the past"),
    (["new", "shop", "--scope", "usage", "--tenant", "*"], "--tenant"),
    (["new", "shop", "--scope", "usage", "--any-tenant", "--sees", "tenant"], "--sees all"),
    (["new", "shop", "--scope", "usage", "--any-tenant", "--tenant", ""], "exclude"),
    (["set", "news", "--priorities", "9-0"], "--priorities"),
    (["set", "news", "--credential", "*"], "--any-credential"),
    (["set", "news"], "nothing to change"),
    (["set", "nwes", "--scope", "usage"], "did you mean news?"),
    (["revoke", "news", "other"], "there is no key other"),
    (["rotate", "news", "--overlap", "soon"], "--overlap"),
]


def test_mistakes_are_named_and_change_nothing(
    run: Command, db: psycopg.Connection, subtests: pytest.Subtests
) -> None:
    make_key(db, "news")
    before = db.execute("SELECT * FROM api_keys").fetchall()
    for words, said in MISTAKES:
        with subtests.test(words=words):
            done = run("apikey", *words)
            assert done.exit_code != 0
            assert said in done.output, done.output
            assert db.execute("SELECT * FROM api_keys").fetchall() == before
