"""Messages by HTTP: their states, their pages under traffic, their changes, and who sees them."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from psycopg.conninfo import make_conninfo

from tests.features.http_api.served import ServedApi, make_key
from tests.support.queuectl import queuectl
from tests.support.rows import attempt, column, message, row


def put(db: psycopg.Connection, number: int, key: str = "shop", tenant: str = "",
        **columns: Any) -> int:  # fmt: skip
    """A message that a key has submitted, with a row."""
    message(db, number)
    db.execute(
        "UPDATE messages SET submitted_by = %s, tenant = %s, message_id_header = %s WHERE id = %s",
        (f"key:{key}", tenant, f"<{number}@example.org>", number),
    )
    return row(db, number, tenant=tenant, **columns)


def past(db: psycopg.Connection, number: int, key: str = "shop", tenant: str = "",
         **columns: Any) -> None:  # fmt: skip
    """A message that has left the queue, by its entry in the log."""
    attempt(db, number + 10**6, number, submitted_by=f"key:{key}", tenant=tenant, **columns)


def of(api: ServedApi, token: str, path: str) -> Any:
    answer = api.send("GET", path, token)
    assert answer.status == 200, answer
    return answer.members


def test_each_state_and_why_it_waits(api: ServedApi, db: psycopg.Connection) -> None:
    token = make_key(db, "shop", "messages")
    later = datetime.now(UTC) + timedelta(hours=2)
    rows: dict[str, dict[str, Any]] = {
        "queued": {},
        "scheduled": {"status": "SCHEDULED", "send_at": later},
        "deferred": {"status": "DEFERRED", "due": 600, "attempts": 1, "last_reply": "450 later"},
        "sending": {"status": "SENDING", "lease": 60},
        "held": {"status": "HOLD", "hold_reason": "spam?", "held_by": "eve@ops"},
        "failed": {"status": "HOLD", "report_kind": "failed", "attempts": 1,
                   "hold_reason": "550 no", "held_by": "deliver@mx1:7"},
        "cancelled": {"status": "DELETE"},
    }  # fmt: skip
    events = {"delivered": (250, "delivered"), "expired": (0, "expired"), "unknown": (0, "unknown"),
              "suppressed": (0, "suppressed")}  # fmt: skip
    for number, (state, columns) in enumerate(rows.items(), 1):
        put(db, number, recipient=f"{state}@b.example", **columns)
    for number, (state, (code, event)) in enumerate(events.items(), 101):
        past(db, number, recipient=f"{state}@b.example", code=code, event=event)
    past(db, 200, recipient="given-up@b.example", code=451, event="failed", **{"class": "expired"})
    found = of(api, token, "/v1/messages?limit=1000")
    assert (found["complete"], found["next"]) == (True, None)
    assert {each["recipient"].partition("@")[0]: each["state"] for each in found["data"]} == {
        **{state: state for state in (*rows, *events)},
        "given-up": "expired",
    }
    given_up = of(api, token, "/v1/messages?state=expired")["data"]
    assert [each["id"] for each in given_up] == ["200", "102"]
    for number, state in enumerate(rows, 1):
        shown = of(api, token, f"/v1/messages/{number}")
        (recipient,) = shown["recipients"]
        assert (shown["id"], recipient["state"]) == (str(number), state)
        assert recipient["waits_for"], recipient
        assert "ops" not in str(shown)
        assert "mx1" not in str(shown)
        found = [each["id"] for each in of(api, token, f"/v1/messages?state={state}")["data"]]
        # failed mail waits for a release, too
        assert found == (["6", "5"] if state == "held" else [str(number)])
    for number, state in enumerate(events, 101):
        (recipient,) = of(api, token, f"/v1/messages/{number}")["recipients"]
        assert recipient["state"] == state
        assert "waits_for" not in recipient
    db.execute(
        "UPDATE attempts SET returned_at = now(), returned = '550 5.1.1', complained_at = now()"
        " WHERE message_id = 101"
    )
    (recipient,) = of(api, token, "/v1/messages/101")["recipients"]
    assert recipient["returned"] == "550 5.1.1"
    assert recipient["complained_at"].endswith("Z")
    assert of(api, token, "/v1/messages/101/attempts")["data"][0]["event"] == "delivered"
    answer = api.send("GET", "/v1/messages?state=qeued", token)
    assert answer.status == 400
    assert "queued" in answer.members["detail"]


def test_suspended_mail_waits_for_the_end_of_its_suspension(
    api: ServedApi, db: psycopg.Connection
) -> None:
    token = make_key(db, "shop", "messages")
    until = datetime(2031, 5, 6, 7, 8, tzinfo=UTC)
    for number, (kind, value, end, said) in enumerate([
        ("domain", "b.example", until, "the end of a suspension of domain b.example at 2031-05-06"),
        ("condition", "priority = 5", None, "the end of a suspension, by an operator"),
    ], 1):  # fmt: skip
        suspension = column(
            db, "SELECT queue_suspend(%s, %s, 'ask ops@x.example', %s)", kind, value, end
        )[0]
        put(db, number, status="DEFERRED", due=400_000)
        db.execute("UPDATE queue SET suspension = %s WHERE message_id = %s", (suspension, number))
        for path in (f"/v1/messages/{number}", f"/v1/messages/{number}/recipients"):
            shown = of(api, token, path)
            assert said in str(shown)
            assert "priority =" not in str(shown)
            assert "ops" not in str(shown)


def test_searches(api: ServedApi, db: psycopg.Connection) -> None:
    token = make_key(db, "shop", "messages")
    put(db, 1, recipient="ann@b.example", sender="x@example.org", metadata={"order": 7, "tag": "a"})
    put(db, 2, recipient="bob@b.example", metadata={"order": "8"})
    past(db, 3, recipient="ann@b.example", metadata='{"order": 9}', message_id_header="<3@x>")
    put(db, 5, recipient="held@b.example", status="HOLD", report_kind="failed")
    old = datetime.now(UTC) - timedelta(days=3)
    yesterday = f"{(datetime.now(UTC) - timedelta(days=1)).isoformat()[:19]}Z"
    past(db, 4, recipient="ann@b.example", ended_at=old, started_at=old, metadata='{"order": 9}')
    for query, numbers in [
        ("", [5, 3, 2, 1]),
        ("recipient=ann@B.example", [4, 3, 1]),
        ("recipient=ann@b.example&metadata.order=9", [4, 3]),
        ("id=4,2,77", [4, 2]),
        ("metadata.order=9", [3]),
        (f"metadata.order=9&since={old.isoformat()[:19]}Z", [4, 3]),
        ("metadata.order=7", [1]),
        ("metadata.order=8", [2]),
        ("tag=a", [1]),
        ("sender=x@example.org", [1]),
        ("message_id_header=3@x", [3]),
        ("message_id_header=<2@example.org>", [2]),
        ("until=2020-01-01T00:00:00Z", []),
        ("since=2100-01-01T00:00:00Z", []),
        ("recipient=ann@b.example&since=2100-01-01T00:00:00Z", []),
        (f"recipient=ann@b.example&since={yesterday}", [3, 1]),
        (f"recipient=ann@b.example&until={yesterday}", [4]),
        ("state=queued", [2, 1]),
        ("state=queued,deferred&recipient=bob@b.example", [2]),
    ]:
        found = of(api, token, f"/v1/messages?{query}")
        assert [int(each["id"]) for each in found["data"]] == numbers, query
    for query in ("nonsense=1", "limit=0", "limit=1001", "after=x", "after=1.99999999999999999999",
                  "id=x", "since=yesterday", "metadata=x",
                  "since=2026-01-02T00:00:00Z&until=2026-01-02T00:00:00Z",
                  "tenant=t9"):  # fmt: skip
        assert api.send("GET", f"/v1/messages?{query}", token).status in (400, 403), query


@pytest.mark.slow
def test_pages_have_each_recipient_once_while_mail_moves(
    api: ServedApi, db: psycopg.Connection, database: str
) -> None:
    token = make_key(db, "shop", "messages")
    number = 10_000
    db.execute(
        "INSERT INTO messages (id, size, trace, body, submitted_by)"
        " SELECT n, 1, '', 'x', 'key:shop' FROM generate_series(1, %s) AS n", (number // 2,),
    )  # fmt: skip
    db.execute(
        "INSERT INTO queue (message_id, sender, recipient, domain)"
        " SELECT (n + 1) / 2, 's@a.example', n || '@b.example', 'b.example'"
        " FROM generate_series(1, %s) AS n", (number,),
    )  # fmt: skip
    ended = threading.Event()

    def deliver() -> None:
        """Deliver the messages in an order of its own, and let others come."""
        with psycopg.connect(database, autocommit=True) as other:
            other.execute("SET search_path = pgmta")
            for part in range(97):
                other.execute(
                    "WITH gone AS (DELETE FROM queue WHERE id %% 97 = %s RETURNING *)"
                    " INSERT INTO attempts (started_at, row_id, message_id, lease_token, attempt,"
                    " code, event, sender, recipient, domain, worker, host, command, enhanced,"
                    " reply, submitted_by) SELECT now(), id, message_id, 1, 1, 250, 'delivered',"
                    " sender, recipient, domain, '', '', '', '', '', 'key:shop' FROM gone", (part,),
                )  # fmt: skip
                put(other, number + part)
                if ended.is_set():
                    return

    thread = threading.Thread(target=deliver)
    thread.start()
    try:
        seen: list[str] = []
        place: str | None = ""
        pages = 0
        while place is not None:
            found = of(api, token, f"/v1/messages?limit=333{f'&after={place}' if place else ''}")
            seen += [each["recipient"] for each in found["data"] if int(each["id"]) <= number // 2]
            place, pages = found["next"], pages + 1
    finally:
        ended.set()
        thread.join()
    assert len(seen) == number
    assert set(seen) == {f"{n}@b.example" for n in range(1, number + 1)}
    assert pages > 30


def test_a_search_says_where_its_time_was_over(db: psycopg.Connection) -> None:
    make_key(db, "shop")
    db.execute(
        "INSERT INTO attempts (started_at, row_id, message_id, lease_token, attempt, code, event,"
        " sender, recipient, domain, worker, host, command, enhanced, reply, submitted_by)"
        " SELECT now(), n, (n + 6) / 7, 1, 1, 250, 'delivered', 's@a.example', n || '@b.example',"
        " 'b.example', '', '', '', '', '',"
        " CASE n % 2 WHEN 0 THEN 'key:shop' ELSE 'key:other' END FROM generate_series(1, 7000) AS n"
    )
    put(db, 500, recipient="waits@b.example")
    db.execute("SET pgmta.acting = 'key:shop'")
    seen: list[str] = []
    place: tuple[int, int] | None = (1 << 62, 0)
    pages = 0
    while place:
        rows = db.execute(
            "SELECT recipient, state, message_id, row_id FROM api_search(NULL, NULL, NULL, NULL,"
            " NULL, NULL, NULL, now() - interval '1 day', now() + interval '1 day',"
            " %s, %s, 1000, 0)", place,
        ).fetchall()  # fmt: skip
        pages += 1
        place = None
        if rows and rows[-1][0] is None:
            _, state, *found = rows.pop()
            assert state == "late"
            place = (found[0], found[1])
        seen += [row[0] for row in rows]
    assert pages > 3
    assert len(seen) == 3501
    assert set(seen) == {"waits@b.example", *(f"{n}@b.example" for n in range(2, 7001, 2))}


def test_recipients_and_attempts_come_in_pages(api: ServedApi, db: psycopg.Connection) -> None:
    token = make_key(db, "shop", "messages")
    put(db, 1, recipient="0@b.example")
    for n in range(1, 250):
        one = row(db, 1, recipient=f"{n}@b.example")
        attempt(db, one, 1, recipient=f"{n}@b.example", submitted_by="key:shop")
    shown = of(api, token, "/v1/messages/1")
    place: str | None
    for what, known, place in [("recipients", shown["recipients"], shown["next"]),
                               ("attempts", [], "")]:  # fmt: skip
        seen = [each["recipient"] for each in known]
        while place is not None:
            path = f"/v1/messages/1/{what}?limit=70{f'&after={place}' if place else ''}"
            page = of(api, token, path)
            seen += [each["recipient"] for each in page["data"]]
            place = page["next"]
        first = 0 if what == "recipients" else 1
        assert seen == [f"{n}@b.example" for n in range(first, 250)]


def test_a_key_changes_what_it_sees_and_releases_what_keys_hold(
    api: ServedApi, db: psycopg.Connection
) -> None:
    token = make_key(db, "shop", "messages messages:change")
    put(db, 1, recipient="a@b.example")
    row(db, 1, recipient="b@b.example")
    row(db, 1, recipient="c@b.example", status="DEFERRED", due=600)

    def change(word: str, number: int = 1, **body: Any) -> Any:
        answer = api.send("POST", f"/v1/messages/{number}/{word}", token, body)
        assert answer.status == 200, answer
        return answer.members["changed"]

    assert change("hold", recipients=["A@b.example"], reason="wait") == 1
    assert change("hold") == 2
    assert change("hold") == 0
    assert set(db.execute("SELECT held_by, hold_reason FROM queue")) == {
        ("key:shop", "wait"), ("key:shop", "by the HTTP API"),
    }  # fmt: skip
    assert column(db, "SELECT who || ' ' || rows FROM audit WHERE action = 'hold' ORDER BY id") == [
        "key:shop 1", "key:shop 2",
    ]  # fmt: skip
    (first, *_) = of(api, token, "/v1/messages/1")["recipients"]
    assert first["waits_for"].startswith("on hold by key:shop")
    db.execute("SELECT queue_quarantine('recipient = ''a@b.example''', 'q1', 'virus')")
    db.execute("UPDATE queue SET held_under = 'rule 1' WHERE recipient = 'b@b.example'")
    assert change("release") == 1  # neither an operator's quarantine nor what a rule holds
    assert column(db, "SELECT recipient FROM queue WHERE status = 'HOLD' ORDER BY 1") == [
        "a@b.example", "b@b.example",
    ]  # fmt: skip
    put(db, 2, status="HOLD", hold_reason="550", report_kind="failed", held_by="key:shop")
    assert change("release", 2) == 0  # it failed: an operator decides
    answer = api.send("POST", "/v1/messages/1/cancel", token,
                      {"recipients": ["b@b.example", "cc@b.example"]})  # fmt: skip
    assert (answer.status, answer.members["pointer"]) == (422, "/recipients/1")
    assert "c@b.example" in answer.members["detail"]
    assert change("cancel", recipients=["b@b.example"], reason="sold out") == 1
    assert column(db, "SELECT recipient || worker || reply FROM attempts") == [
        "b@b.examplekey:shopsold out"
    ]
    assert change("cancel") == 2
    assert change("cancel") == 0
    assert column(db, "SELECT count(*) FROM messages") == [1]
    past(db, 3, recipient="a@b.example", code=250, event="delivered")
    put(db, 3, recipient="b@b.example")
    for body, changed, states in [
        ({"recipients": ["a@b.example"]}, 0, {"delivered": 1}),
        ({}, 1, {"delivered": 1, "cancelled": 1}),
    ]:
        answer = api.send("POST", "/v1/messages/3/cancel", token, body)
        assert answer.members == {"changed": changed, "states": states}
    answer = api.send("POST", "/v1/messages/2/hold", token, {"reason": "a\nb"})
    assert (answer.status, answer.members["pointer"]) == (422, "/reason")


def test_a_key_never_releases_what_an_operator_holds(
    api: ServedApi, database: str, db: psycopg.Connection, tmp_path: Path
) -> None:
    token = make_key(db, "shop", "messages messages:change", tenant="t1")
    operator = make_conninfo(database, options="-c role=pgmta_operator")
    config = tmp_path / "operator.yaml"
    config.write_text(yaml.safe_dump({"environment": {"database": {"uri": operator}}}))

    def change(word: str, number: int) -> Any:
        return api.send("POST", f"/v1/messages/{number}/{word}", token, {}).members["changed"]

    for number in (1, 2):
        put(db, number, tenant="t1")
        assert change("hold", number) == 1
    held = "SELECT queue_hold($$message_id = 1$$, 'phishing')"
    with psycopg.connect(operator, autocommit=True) as session:
        assert column(session, held) == [1]
        assert column(session, held) == [0]  # it is the operator's already
    done = queuectl(config, "hold", "--where", "message_id = 2", "--reason", "phishing", "--yes")
    assert done.exit_code == 0, done.output
    assert [change(word, n) for n in (1, 2) for word in ("hold", "release")] == [0] * 4
    held = "SELECT hold_reason FROM queue WHERE status = 'HOLD'"
    assert column(db, held) == ["phishing"] * 2
    assert "came from the HTTP API, by key shop\n" in queuectl(config, "explain", "1").output


@pytest.mark.parametrize("sees", ["own", "tenant", "all"])
def test_nobody_sees_or_changes_what_is_foreign(
    api: ServedApi, db: psycopg.Connection, sees: str
) -> None:
    token = make_key(db, "one", "messages messages:change", tenant="t1", sees=sees)
    make_key(db, "also", tenant="t1")
    make_key(db, "two", tenant="t2")
    numbers: dict[str, list[int]] = {"own": [], "tenant": [], "all": []}
    for number, (key, tenant, whose) in enumerate(
        [("one", "t1", "own"), ("also", "t1", "tenant"), ("two", "t2", "all")], 1
    ):
        put(db, number, key, tenant, status="HOLD", held_by=f"key:{key}", hold_reason="x")
        past(db, number + 10, key, tenant, event="delivered", code=250)
        numbers[whose] += [number, number + 10]
    mail_without_login = message(db, 9)
    row(db, mail_without_login)
    numbers["all"].append(9)
    seen = {
        "own": numbers["own"], "tenant": numbers["own"] + numbers["tenant"],
        "all": [number for each in numbers.values() for number in each],
    }[sees]  # fmt: skip
    found = of(api, token, "/v1/messages")["data"]
    assert sorted(int(each["id"]) for each in found) == sorted(seen)
    unknown = api.send("GET", "/v1/messages/777", token).body
    for number in (number for each in numbers.values() for number in each):
        paths = [f"/v1/messages/{number}{more}" for more in ("", "/recipients", "/attempts")]
        answers = [api.send("GET", path, token) for path in paths]
        expected = 200 if number in seen else 404
        assert [each.status for each in answers] == [expected] * 3
        if number not in seen:
            assert {each.body for each in answers} == {unknown}
            for word in ("cancel", "hold", "release"):
                answer = api.send("POST", f"/v1/messages/{number}/{word}", token, {})
                assert (answer.status, answer.body) == (404, unknown)
    if sees == "all":  # it sees the mail of the other tenant, and may not release what that held
        answer = api.send("POST", "/v1/messages/3/release", token, {})
        assert answer.members == {"changed": 0, "states": {"held": 1}}
    if sees == "tenant":
        answer = api.send("POST", "/v1/messages/2/release", token, {})
        assert answer.members == {"changed": 1, "states": {"queued": 1}}
