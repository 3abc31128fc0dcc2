"""Suppressions by HTTP, and usage: for the tenant of the key alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg

from tests.features.http_api.served import ServedApi, make_key
from tests.support.rows import attempt, column
from tests.support.waiting import until

PATH = "/v1/suppressions"
_IMPORTS = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgmta api'"


def listed(api: ServedApi, token: str, query: str = "") -> list[str]:
    """The addresses, over all pages."""
    found: list[str] = []
    place: str | None = ""
    while place is not None:
        answer = api.send(
            "GET", f"{PATH}?limit=3{query}{f'&after={place}' if place else ''}", token
        )
        assert answer.status == 200, answer
        found += [each["address"] for each in answer.members["data"]]
        place = answer.members["next"]
    return found


def test_addresses_are_suppressed_looked_up_and_released(
    api: ServedApi, db: psycopg.Connection
) -> None:
    token = make_key(db, "shop", "suppressions", tenant="t1")
    db.execute("SELECT suppression_scope('news', 't1')")

    def ask(more: str, **body: Any) -> Any:
        return api.send("POST", f"{PATH}{more}", token, body)

    assert ask("", address="Bob@B.example").members == {"outcome": "new"}
    assert ask("", address="bob@b.example", scope="news", reason="complained").status == 200
    (row,) = api.send("GET", f"{PATH}?address=BOB@b.example&scope=", token).members["data"]
    assert (row["address"], row["reason"], row["source"]) == (
        "bob@b.example", "operator", "key:shop",
    )  # fmt: skip
    assert column(db, "SELECT DISTINCT tenant FROM suppressions") == ["t1"]
    assert column(db, "SELECT who FROM audit WHERE action = 'suppression add'") == ["key:shop"] * 2
    for body, pointer in [
        ({"address": "bob"}, "/address"), ({"address": "b@b.example", "scope": "nwes"}, "/scope"),
        ({"address": "b@b.example", "reason": "complaint"}, "/reason"),
        ({"address": "b@b.example", "until": "2020-01-01T00:00:00Z"}, "/until"),
    ]:  # fmt: skip
        answer = ask("", **body)
        assert (answer.status, answer.members["pointer"]) == (422, pointer), answer
    assert ask("/release", address="bob@b.example", scope="news").members == {"released": 1}
    assert ask("/release", address="bob@b.example").members == {"released": 1}
    assert ask("/release", address="bob@b.example").members == {"released": 0}
    assert listed(api, token) == []


def test_a_list_is_imported_without_its_bad_lines(api: ServedApi, db: psycopg.Connection) -> None:
    token = make_key(db, "shop", "suppressions", tenant="t1")
    lines = ["address,reason,tenant", *(f"{n:05}@b.example,bounced," for n in range(5000)),
             "nobody,,", "x@b.example,spam,", "y@b.example,,t2", "00000@b.example,,t1"]  # fmt: skip
    answer = api.send("POST", f"{PATH}/import", token, "\n".join(lines), Content_Type="text/csv")
    assert answer.status == 200, answer
    problems = answer.members.pop("problems")
    assert [each["line"] for each in problems] == [5002, 5003, 5004]
    assert answer.members["new"] == 5000
    assert answer.members["bad"] == 3
    assert listed(api, token, "&reason=operator") == []
    assert column(db, "SELECT count(*) FROM suppressions WHERE tenant <> 't1'") == [0]
    answer = api.send("POST", f"{PATH}/import", token, "adress\nx@b.example",
                      Content_Type="text/csv")  # fmt: skip
    assert (answer.status, "address" in answer.members["detail"]) == (422, True)
    answer = api.send("POST", f"{PATH}/import", token, {"a": 1})
    assert answer.status == 415


def test_a_list_of_bad_lines_keeps_nobody_waiting(api: ServedApi, db: psycopg.Connection) -> None:
    token = make_key(db, "shop", "suppressions", tenant="t1")
    lines = b"address\n" + b"x\n" * 2**19
    with ThreadPoolExecutor(1) as pool:
        imported = pool.submit(
            api.send, "POST", f"{PATH}/import", token, lines, Content_Type="text/csv"
        )
        until(lambda: column(db, _IMPORTS) == [1])
        for _ in range(10):
            assert api.send("GET", "/healthy").status == 200
        assert not imported.done()
        assert imported.result().members["bad"] == 2**19


def test_words_of_a_client_are_no_proof_of_ours(api: ServedApi, db: psycopg.Connection) -> None:
    token = make_key(db, "shop", "suppressions", tenant="t1")
    words = ["message 1", "unsubscribe link of message 1", "x" * 191 + " message 1", "campaign 1"]
    for number, source in enumerate(words):
        body = {"address": f"a{number}@b.example", "reason": "complained", "source": source}
        assert api.send("POST", PATH, token, body).status == 200
    lines = [
        "address,source",
        *(f"i{n}@b.example,{source}" for n, source in enumerate(words)),
        "j@b.example,",
    ]
    answer = api.send("POST", f"{PATH}/import", token, "\n".join(lines), Content_Type="text/csv")
    assert answer.members["new"] == 5
    found = column(db, "SELECT source FROM suppressions ORDER BY address")
    assert all(source.endswith(", by key:shop") for source in found[:-1]), found
    assert found[0] == found[4] == "message 1, by key:shop"
    assert found[-1] == "import by key:shop"


def test_suppressions_of_another_tenant_are_not_there(
    api: ServedApi, db: psycopg.Connection
) -> None:
    one = make_key(db, "one", "suppressions", tenant="t1", sees="all")
    two = make_key(db, "two", "suppressions", tenant="t2", sees="all")
    every = make_key(db, "every", "suppressions", tenant="*")
    addresses = [f"{n}@b.example" for n in range(7)]
    for address in addresses:
        assert api.send("POST", PATH, one, {"address": address}).status == 200
    assert listed(api, one) == addresses
    assert listed(api, two) == listed(api, two, "&address=1@b.example") == []
    assert listed(api, every) == []
    assert listed(api, every, "&tenant=t1") == addresses
    released = api.send("POST", f"{PATH}/release", two, {"address": "1@b.example"})
    assert released.members == {"released": 0}
    for body in (
        {"address": "1@b.example", "tenant": "t1"},
        {"address": "1@b.example", "tenant": ""},
    ):
        for path in (PATH, f"{PATH}/release"):
            assert api.send("POST", path, two, body).status == 403
    assert listed(api, one) == addresses


def test_usage_counts_the_days_of_what_a_key_sees(api: ServedApi, db: psycopg.Connection) -> None:
    now = datetime.now(UTC)
    entries = [
        ("one", "t1", "delivered", 0), ("one", "t1", "delivered", 0), ("one", "t1", "deferred", 0),
        ("one", "t1", "failed", 2), ("also", "t1", "delivered", 2), ("two", "t2", "delivered", 0),
        ("one", "t1", "failed", 3),
    ]  # fmt: skip
    for number, (key, tenant, event, days) in enumerate(entries, 1):
        at = now - timedelta(days=days)
        attempt(db, number, number, submitted_by=f"key:{key}", tenant=tenant, event=event,
                started_at=at, ended_at=at)  # fmt: skip
    db.execute("UPDATE attempts SET class = 'expired' WHERE message_id = %s", (len(entries),))
    counts = {}
    for sees in ("own", "tenant", "all"):
        name = {"own": "one", "tenant": "b", "all": "c"}[sees]
        token = make_key(db, name, "usage", tenant="t1", sees=sees)
        page = api.send("GET", "/v1/usage", token).members
        assert page["next"] is None
        assert len(page["data"]) == 7
        assert page["data"][0]["day"] == now.date().isoformat()
        given_up = page["data"][3]
        assert (given_up["expired"], given_up["bounced"]) == (1, 0)
        counts[sees] = [(page["data"][n]["delivered"], page["data"][n]["bounced"]) for n in (0, 2)]
    assert counts == {
        "own": [(2, 0), (0, 1)], "tenant": [(2, 0), (1, 1)], "all": [(3, 0), (1, 1)],
    }  # fmt: skip
    for query in ("since=2020-01-01", "since=x", "since=2026-02-02&until=2026-02-01"):
        assert api.send("GET", f"/v1/usage?{query}", token).status == 400
