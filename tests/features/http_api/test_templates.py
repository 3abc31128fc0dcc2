"""Templates by HTTP: versions, pages, renderings, refusals, and who sees them."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tests.features.http_api.served import ServedApi, make_key
from tests.support.rows import column

TEMPLATE: dict[str, Any] = {
    "from": "Shop <shop@example.org>", "subject": "Order {{number}}", "body": "Hello {{name}}\n",
    "html": "<p>Hello {{name}}</p>", "headers": {"X-Order": "{{number}}"},
}  # fmt: skip


def test_a_template_has_versions_and_makes_mail(api: ServedApi, db: psycopg.Connection) -> None:
    token = make_key(db, "shop", "templates send", tenant="t1")
    path = "/v1/templates/receipt"
    for body, status, version in [
        (TEMPLATE, 201, 1), (TEMPLATE, 200, 1), ({**TEMPLATE, "subject": "No {{number}}"}, 201, 2),
    ]:  # fmt: skip
        answer = api.send("PUT", path, token, body)
        assert (answer.status, answer.members["version"]) == (status, version), answer
    assert answer.members["words"].keys() == {"name", "number"}
    assert column(db, "SELECT DISTINCT tenant || created_by || sender FROM templates") == [
        "t1key:shopshop@example.org"
    ]
    assert column(db, "SELECT count(*) FROM audit WHERE action = 'template put'") == [2]
    shown = api.send("GET", f"{path}?version=1", token).members
    assert {name: shown[name] for name in TEMPLATE} == TEMPLATE
    assert api.send("GET", path, token).members["subject"] == "No {{number}}"
    values = {"params": {"name": "A & B", "number": 7}, "recipient": "Ann <ann@b.example>"}
    mail = api.send("POST", f"{path}/render", token, values).members
    assert (mail["subject"], mail["body"]) == ("No 7", "Hello A & B\n")
    assert mail["html"] == "<p>Hello A &amp; B</p>"
    assert "To: Ann <ann@b.example>\r\n" in mail["content"]
    answer = api.send("POST", f"{path}/render", token, {"params": {"nmae": "x", "number": 1}})
    assert (answer.status, answer.members["pointer"]) == (422, "/params")
    sent = {"template": "receipt", "recipient": "ann@b.example", "params": values["params"]}
    assert api.send("POST", "/v1/messages", token, sent).status == 202
    for name in ("a", "b", "c"):
        assert api.send("PUT", f"/v1/templates/{name}", token, TEMPLATE).status == 201
    seen: list[str] = []
    place: str | None = ""
    while place is not None:
        more = f"&after={place}" if place else ""
        page = api.send("GET", f"/v1/templates?limit=3{more}", token).members
        seen += [each["name"] for each in page["data"]]
        place = page["next"]
    assert seen == ["a", "b", "c", "receipt"]


MISTAKES: list[tuple[Any, int, str]] = [
    ({"from": "x@other.example"}, 403, "/from"),
    ({"sender": "x@other.example"}, 403, "/sender"),
    ({"sender": "{{name}}@example.org"}, 422, "/sender"),
    ({"body": "Hello {{na me}}"}, 422, "/body"),
    ({"html": "<a href='{{name}}"}, 422, "/html"),
    ({"headers": {"From": "x"}}, 422, "/headers/From"),
    ({"headers": {f"X-{n}": "x" for n in range(1001)}}, 422, "/headers"),
    ({"unsubscribe": "nwes"}, 422, "/unsubscribe"),
    ({"subjekt": "x"}, 422, "/subjekt"),
    ({"body": None, "html": None}, 422, ""),
    ({"html": "{{name}}" * 100_000}, 422, "/html"),
]


def test_mistakes_name_their_place(
    api: ServedApi, db: psycopg.Connection, subtests: pytest.Subtests
) -> None:
    token = make_key(db, "shop", "templates")
    for changes, status, pointer in MISTAKES:
        with subtests.test(changes=changes):
            answer = api.send("PUT", "/v1/templates/x", token, {**TEMPLATE, **changes})
            assert (answer.status, answer.members.get("pointer", "")) == (status, pointer), answer
            assert column(db, "SELECT count(*) FROM templates") == [0]


def test_a_value_is_not_multiplied_to_gigabytes(api: ServedApi, db: psycopg.Connection) -> None:
    token = make_key(db, "shop", "templates send")
    body = {"from": "shop@example.org", "subject": "x", "html": "{{a}}" * 1000}
    assert api.send("PUT", "/v1/templates/x", token, body).status == 201
    render, params = "/v1/templates/x/render", {"a": "<" * 60_000}
    mail = {"template": "x", "recipient": "ann@b.example", "params": params}
    refused = [
        (render, {"params": params}, "/params"),
        ("/v1/messages", mail, "/params"),
        (render, {"params": {"a": "x"}, "recipient": "(" * 500_000}, "/recipient"),
    ]
    for path, given, pointer in refused:
        answer = api.send("POST", path, token, given)
        assert (answer.status, answer.members["pointer"]) == (422, pointer), answer
    assert api.send("POST", render, token, {"params": {"a": "<" * 900}}).members["size"] > 3 << 20


def test_a_template_of_another_tenant_is_not_there(api: ServedApi, db: psycopg.Connection) -> None:
    one = make_key(db, "one", "templates", tenant="t1", sees="all")
    two = make_key(db, "two", "templates", tenant="t2")
    every = make_key(db, "every", "templates", tenant="*")
    assert api.send("PUT", "/v1/templates/x", one, TEMPLATE).status == 201
    unknown = api.send("GET", "/v1/templates/y", two)
    assert unknown.status == 404
    asked: list[tuple[str, str, Any]] = [
        ("GET", "/v1/templates/x", None), ("POST", "/v1/templates/x/render", {"params": {}}),
    ]  # fmt: skip
    for method, path, body in asked:
        answer = api.send(method, path, two, body)
        assert (answer.status, answer.body) == (404, unknown.body)
        assert api.send(method, f"{path}?tenant=t1", two, body).status == 403
    assert api.send("GET", "/v1/templates", two).members["data"] == []
    assert api.send("PUT", "/v1/templates/x", two, TEMPLATE).members["version"] == 1
    assert api.send("GET", "/v1/templates/x?tenant=t1", every).members["tenant"] == "t1"
    assert api.send("GET", "/v1/templates/x", every).status == 404
