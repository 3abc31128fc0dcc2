"""Campaigns by HTTP: made, filled from a list, started and stopped; their books and recipients."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import psycopg

from tests.features.http_api.served import ServedApi, make_key
from tests.support.rows import column
from tests.web.web import Answer

PATH = "/v1/campaigns"
TEMPLATE = {"from": "Shop <shop@example.org>", "subject": "News", "body": "Dear {{name}}\n"}
CAMPAIGN = {"name": "spring news", "template": "hello", "credential": "ses-1"}
ONE = f"{PATH}/spring%20news"


def put_template(api: ServedApi, token: str, **changes: str) -> None:
    answer = api.send("PUT", "/v1/templates/hello", token, {**TEMPLATE, **changes})
    assert answer.status in (200, 201), answer


def import_csv(api: ServedApi, token: str, content: str | bytes, query: str = "") -> Answer:
    return api.send("POST", f"{ONE}/import{query}", token, content, Content_Type="text/csv")


def test_a_campaign_from_its_template_to_its_end(api: ServedApi, db: psycopg.Connection) -> None:
    token = make_key(
        db, "shop", "campaigns templates suppressions", tenant="t1", credentials=["ses-1"]
    )
    put_template(api, token)
    made = api.send("POST", PATH, token, {**CAMPAIGN, "scope": "news"})
    assert (made.status, made.headers["location"]) == (201, ONE), made
    assert made.members["columns"] == ["recipient", "name"]
    again = api.send("POST", PATH, token, CAMPAIGN)
    assert (again.status, again.members["type"]) == (409, "urn:pgmta:problem:conflict")
    refused = api.send("POST", f"{ONE}/start", token)
    assert (refused.status, "no recipients" in refused.members["detail"]) == (409, True)
    assert api.send("POST", "/v1/suppressions", token, {"address": "s@h.example"}).status == 200
    lines = ["recipient;name;age", *(f"r{n}@h.example;Zoë {n};7" for n in range(3000)),
             "s@h.example;S;1", "nobody;N;1", "R1@h.example;R;1", "x@h.example;X"]  # fmt: skip
    answer = import_csv(api, token, "\n".join(lines).encode("windows-1252"))
    assert answer.status == 200, answer
    found = answer.members
    assert [found[name] for name in ("rows", "imported", "suppressed", "bad", "duplicates")] == [
        3004, 3001, 1, 2, 1,
    ]  # fmt: skip
    assert (found["encoding"], found["separator"]) == ("windows-1252", "semicolon")
    assert (found["columns"], found["left_out"]) == (
        {"recipient": "recipient", "name": "name"}, ["age"],
    )  # fmt: skip
    assert sorted(each["line"] for each in found["problems"]) == [3003, 3004, 3005]
    refused = import_csv(api, token, "recipient;nmae\na@h.example;A")
    assert (refused.status, "name" in refused.members["detail"]) == (422, True)
    refused = import_csv(api, token, "recipient,name\nr1@h.example,A")
    assert refused.status == 409
    started = api.send("POST", f"{ONE}/start", token, {"jobs": 2, "part": 0.1, "pause": 3600})
    assert started.status == 200, started
    assert started.members["unsent"] == 3000
    assert "a worker: none that delivers runs" in started.members["waits_for"]
    stopped = api.send("POST", f"{ONE}/stop", token, {}).members
    assert stopped["status"] == "STOPPED" or stopped["status"].endswith(" STOPPED")
    assert stopped["waits_for"] == ["its resumption, because it was stopped before the other 3000"]
    assert set(column(db, "SELECT status FROM campaign_jobs")) == {"STOPPED"}
    retried = api.send("POST", f"{ONE}/retry", token, {"unknown": True})
    assert (retried.status, retried.members["recipients"]) == (200, 3001)
    assert "STOPPED" not in column(db, "SELECT status FROM campaign_jobs")
    assert api.send("POST", f"{ONE}/resume", token).status == 200
    shown = api.send("GET", ONE, token).members
    counts = ("unsent", "queued", "sent", "errored", "invalid", "unknown")
    assert sum(shown[name] for name in counts) == shown["recipients"] == 3001
    rows = api.send("GET", f"{ONE}/recipients?words=true", token)
    assert rows.headers["content-type"] == "application/x-ndjson"
    written = [json.loads(line) for line in rows.body.splitlines()]
    assert len(written) == 3001
    assert (written[0]["recipient"], written[0]["word_name"]) == ("r0@h.example", "Zoë 0")
    rows = api.send("GET", f"{ONE}/recipients?state=invalid", token, Accept="text/csv")
    (only,) = csv.DictReader(io.StringIO(rows.body.decode()))
    assert (only["recipient"], only["state"]) == ("s@h.example", "invalid")
    audit = column(db, "SELECT action FROM audit WHERE who = 'key:shop' ORDER BY id")
    assert [each.removeprefix("campaign ") for each in audit if each.startswith("campaign")] == [
        "create", "import", "start", "stop", "retry", "resume",
    ]  # fmt: skip


def test_a_campaign_is_changed_copied_and_deleted(api: ServedApi, db: psycopg.Connection) -> None:
    token = make_key(db, "shop", "campaigns templates", credentials=["ses-1"])
    put_template(api, token)
    assert api.send("POST", PATH, token, CAMPAIGN).status == 201
    columns = "?column.recipient=E-Mail&column.name=Vorname"
    answer = import_csv(api, token, "E-Mail,Vorname\na@h.example,A\nb@h.example,B", columns)
    assert answer.members["columns"] == {"recipient": "E-Mail", "name": "Vorname"}, answer
    refused = import_csv(api, token, "E-Mail\nc@h.example", "?column.nmae=E-Mail")
    assert (refused.status, "'name'?" in refused.members["detail"]) == (422, True), refused
    refused = import_csv(api, token, "E-Mail,name\nc@h.example,C")
    assert (refused.status, "; give column.recipient=" in refused.members["detail"]) == (422, True)
    refused = import_csv(api, token, "E-Mail,name\nc@h.example,C", "?column=recipient=E-Mail")
    assert (refused.status, "column.KEY=VALUE" in refused.members["detail"]) == (400, True), refused
    refused = import_csv(api, token, "recipient,name\na@h.example,A\nb,B")
    assert (refused.status, refused.members["type"]) == (409, "urn:pgmta:problem:conflict")
    lines = {each["detail"].partition(":")[0] for each in refused.members["errors"]}
    assert lines == {"Line 2", "Line 3"}
    put_template(api, token, subject="Later news")
    changed = api.send("POST", f"{ONE}/template", token, {"template": "hello"})
    assert (changed.status, changed.members["unsent"]) == (200, 2), changed
    # an operator's version has a sender that the key may not have
    db.execute("INSERT INTO templates (name, version, sender, from_field, subject, body)"
               " VALUES ('hello', 3, 'x@other.example', 'x@other.example', 'x', 'x')")  # fmt: skip
    assert api.send("POST", f"{ONE}/template", token, {"template": "hello"}).status == 403
    versions = "SELECT version FROM campaigns AS c JOIN templates AS t ON t.id = c.template_id"
    assert column(db, versions) == [2]
    refused = api.send("POST", f"{ONE}/copy", token, {"name": "may", "states": ["unsnet"]})
    assert (refused.status, refused.members["pointer"]) == (422, "/states"), refused
    made = api.send("POST", f"{ONE}/copy", token, {"name": "may", "states": ["unsent"]})
    assert (made.status, made.headers["location"]) == (201, f"{PATH}/may"), made
    assert (made.members["name"], made.members["recipients"]) == ("may", 2)
    assert api.send("POST", f"{PATH}/may/start", token).status == 200
    assert api.send("DELETE", f"{PATH}/may", token).status == 409
    assert api.send("DELETE", ONE, token).status == 204
    assert column(db, "SELECT name FROM campaigns") == ["may"]
    db.execute("UPDATE campaigns SET priority = 1")  # as an operator may have made it
    refused = api.send("POST", f"{PATH}/may/copy", token, {"name": "june"})
    assert (refused.status, refused.members["type"]) == (403, "urn:pgmta:problem:priority-refused")


def test_mistakes_store_nothing(api: ServedApi, db: psycopg.Connection) -> None:
    token = make_key(db, "shop", "campaigns templates", credentials=["ses-1", "no blanks"])
    put_template(api, token)
    bad: list[tuple[dict[str, Any], int, str]] = [
        ({"template": "helo"}, 422, "/template"),
        ({"version": 9}, 422, "/version"),
        ({"credential": "no blanks"}, 422, "/credential"),
        ({"opens": "09:00"}, 422, "/opens"),
        ({"opens": "9 o'clock", "closes": "17:00"}, 422, "/opens"),
        ({"opens": "09:00", "closes": "17:00", "zone": "Europe/Nowhere"}, 422, "/zone"),
        ({"deadline": "2020-01-01T00:00:00Z"}, 422, "/deadline"),
        ({"sender": "x@other.example"}, 403, "/sender"),
        ({"credential": "ses-2"}, 403, "/credential"),
        ({"priority": 4}, 403, "/priority"),
        ({"priority": 8}, 403, "/priority"),
        ({"nmae": "x"}, 422, "/nmae"),
    ]
    for changes, status, pointer in bad:
        answer = api.send("POST", PATH, token, {**CAMPAIGN, **changes})
        assert (answer.status, answer.members.get("pointer")) == (status, pointer), answer
    # a template of somebody with other senders, and one whose From is a word
    db.execute("INSERT INTO templates (name, version, sender, from_field, subject, body)"
               " VALUES ('hello', 7, 'x@other.example', 'x@other.example', 'x', 'x'),"
               " ('word', 1, '', '{{from}}', 'x', 'x')")  # fmt: skip
    for name in ("hello", "word"):
        answer = api.send("POST", PATH, token, {**CAMPAIGN, "template": name})
        assert (answer.status, answer.members.get("pointer")) == (403, "/template"), answer
    assert column(db, "SELECT count(*) FROM campaigns") == [0]
    # whoever may not send from its addresses can't have others send for him
    db.execute("SELECT campaign_create('spring news', 'ses-1', 'hello')")
    for word, body in [
        ("start", {}), ("resume", {}), ("retry", {}), ("copy", {"name": "x"}),
        ("template", {"template": "hello"}),
    ]:  # fmt: skip
        assert api.send("POST", f"{ONE}/{word}", token, body).status == 403
    assert api.send("DELETE", ONE, token).status == 403
    assert import_csv(api, token, "recipient\na@h.example").status == 403
    assert api.send("GET", ONE, token).status == 200


def test_a_campaign_of_another_tenant_is_not_there(api: ServedApi, db: psycopg.Connection) -> None:
    one = make_key(db, "one", "campaigns templates", tenant="t1", sees="all", credentials=["ses-1"])
    two = make_key(db, "two", "campaigns", tenant="t2", sees="all", credentials=["ses-1"])
    every = make_key(db, "every", "campaigns", tenant="*", credentials=["ses-1"])
    put_template(api, one)
    assert api.send("POST", PATH, one, CAMPAIGN).status == 201
    assert import_csv(api, one, "recipient,name\na@h.example,A").status == 200
    unknown = api.send("GET", f"{PATH}/none", two)
    assert unknown.status == 404
    asked: list[tuple[str, str, Any, str]] = [
        ("GET", "", None, ""), ("GET", "/recipients", None, ""), ("POST", "/start", {}, ""),
        ("POST", "/stop", None, ""), ("POST", "/resume", {}, ""), ("POST", "/retry", {}, ""),
        ("POST", "/copy", {"name": "x"}, ""), ("POST", "/template", {"template": "hello"}, ""),
        ("DELETE", "", None, ""),
        ("POST", "/import", "recipient,name\nb@h.example,B", "text/csv"),
    ]  # fmt: skip
    for method, more, body, kind in asked:
        fields = {"Content_Type": kind} if kind else {}
        answer = api.send(method, ONE + more, two, body, **fields)
        assert (answer.status, answer.body) == (404, unknown.body), more
        assert api.send(method, f"{ONE}{more}?tenant=t1", two, body, **fields).status == 403
    assert api.send("GET", PATH, two).members["data"] == []
    assert [each["name"] for each in api.send("GET", PATH, one).members["data"]] == ["spring news"]
    assert api.send("GET", f"{ONE}?tenant=t1", every).members["recipients"] == 1
    assert column(db, "SELECT count(*) FROM campaign_jobs") == [0]


def test_a_credential_of_another_tenant_tells_nothing_of_it(
    api: ServedApi, db: psycopg.Connection
) -> None:
    one = make_key(db, "one", "campaigns templates", tenant="t1", credentials=["ses-1"])
    two = make_key(db, "two", "campaigns templates", tenant="t2", credentials=["ses-2"])
    for token, body in ((one, CAMPAIGN), (two, {**CAMPAIGN, "credential": "ses-2"})):
        put_template(api, token)
        assert api.send("POST", PATH, token, body).status == 201
        assert import_csv(api, token, "recipient,name\na@h.example,A").status == 200
    # both have the credential: an operator gave it to one of them, who may start nothing with it
    db.execute("UPDATE campaigns SET credential = 'ses-2', name = 'secret' WHERE tenant = 't1'")
    for word in ("start", "resume", "retry"):
        answer = api.send("POST", f"{PATH}/secret/{word}", one, {})
        assert (answer.status, answer.members["type"]) == (
            403, "urn:pgmta:problem:credential-refused",
        )  # fmt: skip
    db.execute("SELECT campaign_start(id) FROM campaigns WHERE tenant = 't1'")
    assert column(db, "SELECT campaign_take()") == [1]
    waits = api.send("POST", f"{ONE}/start", two, {}).members["waits_for"]
    assert any("credential ses-2, until a campaign of another tenant" in each for each in waits)
    assert "secret" not in str(waits)
    obstacles = (
        "SELECT (campaign_obstacles(id)).user_of_credential FROM campaigns WHERE tenant = 't2'"
    )
    assert column(db, obstacles) == ["secret"]  # an operator sees it


def test_campaigns_come_in_pages(api: ServedApi, db: psycopg.Connection) -> None:
    token = make_key(db, "shop", "campaigns templates", credentials=["ses-1"])
    put_template(api, token)
    for number in range(7):
        db.execute("SELECT campaign_create(%s, 'ses-1', 'hello')", (f"c{number}",))
    seen: list[str] = []
    place: str | None = ""
    while place is not None:
        page = api.send("GET", f"{PATH}?limit=3{f'&after={place}' if place else ''}", token).members
        seen += [each["name"] for each in page["data"]]
        place = page["next"]
    assert seen == [f"c{number}" for number in reversed(range(7))]
