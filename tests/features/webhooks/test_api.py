"""`/v1/webhooks`: endpoints of a key, and nobody else's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from psycopg import errors
from psycopg.conninfo import make_conninfo
from standardwebhooks.webhooks import Webhook

from tests.features.http_api.served import ServedApi, make_key, serving_api
from tests.features.webhooks.receiver import Receiver
from tests.support.daemons import ROOT
from tests.support.rows import column, fetch
from tests.support.system import System
from tests.support.waiting import until
from tests.web.web import Answer


@pytest.fixture
def api(database: str, tmp_path: Path, key: Path) -> Iterator[ServedApi]:
    uri = make_conninfo(database, options="-c role=pgmta_api")
    changes: dict[str, Any] = {
        "webhooks": {"keys": [str(key)]},
        "public": {"url": "https://shop.example/mail"},
    }
    with serving_api(tmp_path, uri, **changes) as daemon:
        yield daemon


def word(answer: Answer) -> str:
    return str(answer.members["type"]).removeprefix("urn:pgmta:problem:")


def test_an_endpoint_is_made_changed_and_removed(api: ServedApi, db: psycopg.Connection) -> None:
    token = make_key(db)
    new = {"name": "hook", "url": "https://shop.example/hook", "kinds": ["bounced"],
           "condition": {"metadata": ["order=*"]}, "owner": "ops@example.org"}  # fmt: skip
    made = api.send("POST", "/v1/webhooks", token, new)
    assert made.status == 201, made
    number, secret = made.members["id"], made.members["secret"]
    assert secret.startswith("whsec_")
    again = api.send("POST", "/v1/webhooks", token, new)
    assert (again.status, word(again)) == (409, "webhook-exists")
    place = f"/v1/webhooks/{number}"
    shown = api.send("GET", place, token).members
    expected = {**new, "state": "active", "created_by": "key:shop"}
    assert {name: shown[name] for name in expected} == expected
    assert "secret" not in shown
    assert api.send("GET", "/v1/webhooks", token).members["data"] == [shown]
    changed = api.send("PATCH", place, token, {"url": "https://other.example/", "kinds": None})
    assert changed.members["url"] == "https://other.example/"
    assert "kinds" not in changed.members
    nothing = api.send("PATCH", place, token)
    assert (nothing.status, nothing.members["type"]) == (400, "urn:pgmta:problem:body-missing")
    rotated = api.send("POST", f"{place}/rotate", token).members
    assert rotated["secret"] not in ("", secret)
    again = api.send("POST", f"{place}/rotate", token)  # the receiver may still have the first one
    assert (again.status, rotated["earlier_until"][11:19] in again.members["detail"]) == (409, True)
    assert api.send("POST", f"{place}/disable", token).members["state"] == "disabled"
    assert api.send("POST", f"{place}/enable", token).members["state"] == "active"
    since = {"since": "2026-01-01T00:00:00Z"}
    asked = api.send("POST", f"{place}/replay", token, since)
    assert (asked.status, asked.members) == (202, since)
    unknown = api.send("POST", f"{place}/replay", token, {"events": ["9-9"]})
    assert (unknown.status, "no such event" in unknown.members["detail"]) == (404, True), unknown
    assert api.send("GET", f"{place}/failures", token).members == {"data": [], "next": None}
    assert api.send("DELETE", place, token).status == 204
    assert api.send("GET", place, token).status == 404
    assert fetch(db, "SELECT count(*), min(role) FROM pgmta.audit WHERE action ~ 'webhook'") == (
        7, "key:shop",
    )  # fmt: skip


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"kinds": ["bounce"]}, "/kinds/0", "bounced"),
    ({"url": "ftp://x"}, "/url", ""),
    ({"url": "https://u:p@x.example/"}, "/url", ""),
    ({"url": "https://127.0.0.1/"}, "/url", "no public address"),
    ({"url": "http://shop.example/"}, "/url", "by https alone"),
    ({"urll": "https://x.example/"}, "/urll", "url"),
    ({"name": "a b"}, "/name", ""),
    ({"batch": 1001}, "/batch", ""),
    ({"batch": "7"}, "/batch", ""),
    ({"owner": "nobody"}, "/owner", ""),
    ({"condition": {"sendr": ["x"]}}, "/condition/sendr", "sender"),
    ({"condition": {"metadata": ["x"]}}, "/condition", ""),
]  # fmt: skip


def test_what_is_wrong_is_named_and_nothing_is_stored(
    api: ServedApi, db: psycopg.Connection, subtests: pytest.Subtests
) -> None:
    token = make_key(db, tenant="acme")
    for change, pointer, near in WRONG:
        with subtests.test(change=change):
            body = {"name": "hook", "url": "https://shop.example/"} | change
            answer = api.send("POST", "/v1/webhooks", token, body)
            assert answer.status == 422, answer
            entries = answer.members.get("errors") or [answer.members]
            assert pointer in [each.get("pointer") for each in entries], answer.members
            assert near in str(answer.members)
            assert fetch(db, "SELECT count(*) FROM pgmta.webhooks") == (0,)


def test_mail_to_owners_goes_to_senders_of_the_key_alone(
    api: ServedApi, db: psycopg.Connection
) -> None:
    token, other = make_key(db, senders=["@shop.example"]), {"owner": "b@victim.example"}
    body = {"name": "hook", "url": "https://shop.example/", "owner": "Ops@SHOP.example"}
    made = api.send("POST", "/v1/webhooks", token, body)
    place = f"/v1/webhooks/{made.members['id']}"
    for refused in (
        api.send("PATCH", place, token, other),
        api.send("POST", "/v1/webhooks", token, body | other),
        api.send("POST", "/v1/webhooks", make_key(db, "mute", senders=[]), body),
    ):
        assert (refused.status, word(refused)) == (403, "sender-refused")
        assert refused.members["pointer"] == "/owner"
    assert column(db, "SELECT owner FROM pgmta.webhooks") == [body["owner"]]


def test_an_endpoint_of_another_key_is_unknown(api: ServedApi, db: psycopg.Connection) -> None:
    own = make_key(db, "own", tenant="acme")
    tenant = make_key(db, "tenant", tenant="acme", sees="tenant")
    other = make_key(db, "other", tenant="other", sees="tenant")
    anyone = make_key(db, "all", tenant="*", sees="all")
    without = make_key(db, "without", "send")
    body = {"name": "hook", "url": "https://shop.example/"}
    number = api.send("POST", "/v1/webhooks", own, body).members["id"]
    place = f"/v1/webhooks/{number}"
    statuses = [api.send("GET", place, token).status for token in (own, tenant, other, anyone)]
    assert statuses == [200, 200, 404, 200]
    for method, path in (
        ("GET", place), ("DELETE", place), ("POST", f"{place}/rotate"),
        ("GET", f"{place}/failures"), ("POST", f"{place}/enable"),
        ("GET", "/v1/webhooks/99999999999999999999"),
        ("GET", "/v1/webhooks/x"),
    ):  # fmt: skip
        assert api.send(method, path, other).status == 404, path
    assert api.send("GET", place, without).status == 403
    refused = api.send("POST", "/v1/webhooks", other, body | {"tenant": "acme"})
    assert (refused.status, refused.members["pointer"]) == (403, "/tenant")
    foreign = api.send("POST", "/v1/webhooks", anyone, body | {"tenant": "acme"})
    assert foreign.status == 201
    assert foreign.headers["location"] == f"/mail/v1/webhooks/{foreign.members['id']}"
    inward = api.send(
        "PATCH", f"/v1/webhooks/{foreign.members['id']}", anyone, {"url": "https://10.0.0.1/"}
    )
    assert (inward.status, inward.members["pointer"]) == (422, "/url")
    assert fetch(db, "SELECT tenant, viewer FROM pgmta.webhooks ORDER BY id DESC LIMIT 1") == (
        "acme", None,
    )  # fmt: skip


def test_keys_change_no_endpoint_of_an_operator_and_lead_none_to_inner_networks(
    api: ServedApi, db: psycopg.Connection
) -> None:
    """It may have a secret that operators share between endpoints."""
    db.execute(ADD.replace("'other'", "'acme'").replace("//x/", "//x:1/a?b=c"), ("file:ops",))
    (number,) = fetch(db, "SELECT id FROM pgmta.webhooks")
    tenant = make_key(db, "tenant", tenant="acme", sees="tenant")
    anyone = make_key(db, "all", tenant="*", sees="all")
    own = {"name": "own", "url": "https://shop.example/"}
    for token in (tenant, anyone):
        place = f"/v1/webhooks/{number}"
        assert api.send("GET", place, token).members["url"] == "https://x:1/..."
        change = {"url": "https://evil.example/"}
        for method, path, body in (
            ("PATCH", place, change), ("DELETE", place, None), ("POST", f"{place}/rotate", None),
            ("POST", f"{place}/disable", None), ("POST", f"{place}/replay", {"set_aside": True}),
        ):  # fmt: skip
            refused = api.send(method, path, token, body)
            assert (refused.status, word(refused)) == (403, "webhook-of-operator")
        made = api.send("POST", "/v1/webhooks", token, own).members["id"]
        for url in ("https://10.0.0.1/", "http://shop.example/", "https://shop.example:25/"):
            for method, path, body in (
                ("POST", "/v1/webhooks", own | {"name": "x", "url": url}),
                ("PATCH", f"/v1/webhooks/{made}", {"url": url}),
            ):
                assert api.send(method, path, token, body).status == 422
    assert column(db, "SELECT url FROM pgmta.webhooks WHERE revision > 1") == []


ADD = "SELECT pgmta.webhook_add('hook', 'https://x/', NULL, '{}', %s, NULL, 1, tenant => 'other')"
CALLS = (
    "webhook_remove(%s)", "webhook_enable(%s, false)", "webhook_rotate(%s, 'key:x')",
    "webhook_change(%s, '{}')", "webhook_replay(%s, now())", "webhook_failures_seen(%s)",
)  # fmt: skip


def test_the_login_of_the_api_can_do_no_more_than_the_key_for_which_it_acts(
    database: str, db: psycopg.Connection
) -> None:
    for name, tenant, sees in (
        ("own", "acme", "own"), ("tenant", "acme", "tenant"), ("other", "other", "tenant"),
        ("all", "*", "all"),
    ):  # fmt: skip
        make_key(db, name, tenant=tenant, sees=sees)
    db.execute(ADD, ("file:x",))
    uri = make_conninfo(database, options="-c role=pgmta_api")
    with psycopg.connect(uri, autocommit=True) as login:

        def act(key: str) -> None:
            login.execute("SELECT set_config('pgmta.acting', %s, false)", (key,))

        for key in ("", "key:none"):
            act(key)
            for call in ("webhooks_seen()", "webhook_remove(1)"):
                with pytest.raises(errors.InsufficientPrivilege):
                    login.execute(f"SELECT pgmta.{call}".encode())
        ids = {}
        for name in ("own", "tenant", "all"):
            act(f"key:{name}")
            with pytest.raises(errors.InsufficientPrivilege, match="derived"):
                login.execute(ADD, ("file:x",))
            ids[name] = int(str(login.execute(ADD.replace("'hook'", f"'{name}'"), ("key:x",))
                                .fetchall()[0][0]))  # fmt: skip
        assert db.execute(
            "SELECT tenant, viewer, created_by FROM pgmta.webhooks ORDER BY id"
        ).fetchall()[1:] == [
            ("acme", "key:own", "key:own"), ("acme", None, "key:tenant"),
            ("other", None, "key:all"),
        ]  # fmt: skip
        for key, hidden in {"key:own": "tenant", "key:tenant": "all", "key:other": "own"}.items():
            act(key)
            for call in CALLS:
                with pytest.raises(errors.NoDataFound):
                    login.execute(f"SELECT * FROM pgmta.{call}".encode(), (ids[hidden],))
        seen = "SELECT name FROM pgmta.webhooks_seen()"
        for key, names in {
            "key:own": ["own"], "key:tenant": ["own", "tenant"], "key:other": ["hook", "all"],
            "key:all": ["hook", "own", "tenant", "all"],
        }.items():  # fmt: skip
            act(key)
            assert column(login, seen) == names
        for table in ("webhooks", "webhook_failures"):
            with pytest.raises(errors.InsufficientPrivilege):
                login.execute(f"SELECT FROM pgmta.{table}".encode())


def test_without_a_key_of_the_installation_no_endpoint_is_made(
    database: str, db: psycopg.Connection, tmp_path: Path
) -> None:
    token = make_key(db)
    with serving_api(tmp_path, make_conninfo(database, options="-c role=pgmta_api")) as api:
        body = {"name": "hook", "url": "https://shop.example/"}
        answer = api.send("POST", "/v1/webhooks", token, body)
    assert (answer.status, word(answer)) == (409, "webhooks-keyless")


def test_events_of_its_mail_come_with_the_secret_that_was_shown(
    api: ServedApi, db: psycopg.Connection, system: System, receiver: Receiver,
    settings: dict[str, Any],
) -> None:  # fmt: skip
    token = make_key(db, senders=["@shop.example"])
    body = {"name": "hook", "url": "https://shop.example/", "kinds": ["accepted", "delivered"]}
    secret = api.send("POST", "/v1/webhooks", token, body).members["secret"]
    # endpoints of keys can't be at a loopback address
    change = "UPDATE pgmta.webhooks SET url = %s, viewer = NULL, created_by = 'ops'"
    db.execute(change, (receiver.url(),))
    system.queued(system.hop(), **settings)
    mail = {"from": "a@shop.example", "to": ["b@c.example"], "subject": "x", "body": "y"}
    sent = api.send("POST", "/v1/messages", token, mail)
    assert sent.status == 202, sent
    until(lambda: len(receiver.events()) == 2)
    for request in receiver.got():
        Webhook(secret).verify(request.body, request.fields)
    assert {each["submitted_by"] for each in receiver.events()} == {"key:shop"}


def test_the_api_and_queued_of_make_run_have_one_key() -> None:
    api, queued = (
        yaml.safe_load((ROOT / "etc" / "dev" / name).read_text())
        for name in ("api.yaml", "queued.yaml")
    )
    assert api["webhooks"]["keys"] == queued["webhooks"]["keys"]
