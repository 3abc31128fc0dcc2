"""GET /v1/events: pages, waits and streams of what a key may see."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from psycopg import errors

from pgmta.postgres.link import Link
from pgmta_features.http_api.api import Api
from pgmta_features.http_api.caller import Caller
from pgmta_features.http_api.expiry import expire_requests
from pgmta_features.http_api.resources import events
from pgmta_features.http_api.resources.events import MAX_WAITING_OF_KEY, Event
from queued.web.site import Site
from queued.web.web_config import whole_web_config
from tests.features.events.event_log import number
from tests.features.http_api.served import ServedApi, make_key
from tests.support.rows import attempt, column, fetch
from tests.support.waiting import PATIENCE, until


def put(db: psycopg.Connection, *ids: int, **columns: Any) -> None:
    """Write entries of the log, and number them."""
    for each in ids:
        attempt(db, each, each, **{"submitted_by": "key:shop", **columns})
    number(db)


def page(api: ServedApi, token: str, query: str = "") -> dict[str, Any]:
    answer = api.send("GET", f"/v1/events{query}", token)
    assert answer.status == 200, answer.body
    for document in answer.members["data"]:
        Event.model_validate(document)
    found: dict[str, Any] = answer.members
    return found


def ids(found: dict[str, Any]) -> list[int]:
    return [int(each["message_id"]) for each in found["data"]]


@contextmanager
def stream(api: ServedApi, token: str, query: str = "", **headers: str) -> Iterator[Any]:
    """A stream of events, whose lines are read."""
    connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=PATIENCE)
    fields = {"Authorization": f"Bearer {token}", "Accept": "text/event-stream", **headers}
    try:
        connection.request("GET", f"/v1/events{query}", headers=fields)
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        yield answer
    finally:
        connection.close()


def next_event(answer: http.client.HTTPResponse) -> dict[str, str]:
    """Return the fields of the next event, without comments."""
    fields: dict[str, str] = {}
    while line := answer.readline().decode().rstrip("\n"):
        if not line.startswith(":"):
            name, _, value = line.partition(": ")
            fields[name] = value
    return fields or next_event(answer)


def test_pages(db: psycopg.Connection, api: ServedApi) -> None:
    token = make_key(db, "shop", "events")
    attempt(db)  # before the first call, which subscribes
    first = page(api, token)
    assert first["data"] == []
    assert page(api, token, f"?after={first['next']}") == first
    put(db, *range(5), event="delivered")
    put(db, 5, event="failed")
    put(db, 6, submitted_by="key:bank")
    second = page(api, token, f"?after={first['next']}&limit=4")
    assert ids(second) == [0, 1, 2, 3]
    last = page(api, token, f"?after={second['next']}")
    assert ids(last) == [4, 5]
    assert page(api, token, f"?after={last['next']}") == {"data": [], "next": last["next"]}
    assert ids(page(api, token, "?kind=bounced,held&since=2020-01-01T00:00:00Z")) == [5]
    assert page(api, token, "?since=2100-01-01T00:00:00%2b01:00")["data"] == []
    assert column(db, "SELECT name FROM event_subscriptions WHERE read_at > now() - interval '1h'"
                  ) == ["key:shop"]  # fmt: skip


def test_a_key_sees_its_own_events_those_of_its_tenant_or_all(
    db: psycopg.Connection, api: ServedApi
) -> None:
    sees = {"own": [1], "tenant": [1, 2], "all": [1, 2, 3]}
    tokens = {each: make_key(db, each, "events", tenant="t", sees=each) for each in sees}
    page(api, tokens["own"])
    put(db, 1, tenant="t", submitted_by="key:own")
    put(db, 2, tenant="t", submitted_by="key:shop")
    put(db, 3, tenant="u", submitted_by="key:shop")
    assert {each: ids(page(api, token)) for each, token in tokens.items()} == sees
    other = api.send("GET", "/v1/events", make_key(db, "other", "send"))
    assert other.status == 403


def test_the_login_of_the_api_reads_no_events_without_a_key(
    db: psycopg.Connection, as_api: str
) -> None:
    make_key(db, "shop", "events")
    db.execute("SELECT events_subscribe('key:shop', 'reader')")
    put(db, 1)
    with psycopg.connect(as_api, autocommit=True) as session:
        read = "SELECT id FROM pgmta.api_events(NULL, 5, NULL)"
        assert column(session, read) == []
        with pytest.raises(errors.InsufficientPrivilege):
            session.execute("SELECT * FROM pgmta.events_read(NULL, 5)")
        with pytest.raises(errors.InsufficientPrivilege, match="for no key"):
            session.execute("SELECT pgmta.events_reader()")
        session.execute("SET pgmta.acting = 'key:shop'")
        assert len(column(session, read)) == 1


async def test_the_subscription_of_a_key_ends_with_it_and_a_gap_is_shown(
    db: psycopg.Connection, api: ServedApi, link: Link
) -> None:
    token, other = make_key(db, "shop", "events"), make_key(db, "bank", "events")
    page(api, token)
    page(api, other)
    put(db, 1)
    after = page(api, token)["next"]
    db.execute("UPDATE api_keys SET revoked_at = now() WHERE name = 'bank'")
    await expire_requests(link, 86400, 3600)
    assert column(db, "SELECT name FROM event_subscriptions") == ["key:shop"]
    db.execute("SELECT events_unsubscribe('key:shop')")
    put(db, 2)  # nobody subscribes
    answer = api.send("GET", f"/v1/events?after={after}", token)  # which subscribes again
    put(db, 3)
    assert answer.status == 409
    assert "nobody subscribed" in answer.members["detail"]
    assert ids(page(api, token, "?since=2020-01-01T00:00:00Z")) == [1, 3]


def test_a_page_is_waited_for(db: psycopg.Connection, api: ServedApi) -> None:
    token = make_key(db, "shop", "events")
    begin = page(api, token, "?wait=0")["next"]
    found: list[dict[str, Any]] = []
    wait = threading.Thread(
        target=lambda: found.append(page(api, token, f"?after={begin}&wait=30"))
    )
    wait.start()
    until(lambda: column(db, LISTENS))
    put(db, 1, submitted_by="key:bank")  # foreign: it waits on
    put(db, 2)
    wait.join(PATIENCE)
    assert [ids(each) for each in found] == [[2]]


LISTENS = "SELECT 1 FROM pg_stat_activity WHERE query = 'LISTEN pgmta_events'"


def test_a_stream_goes_on_where_it_broke(db: psycopg.Connection, api: ServedApi) -> None:
    token = make_key(db, "shop", "events")
    page(api, token)
    put(db, 1, 2)
    with stream(api, token, "?kind=deferred") as answer:
        assert answer.getheader("Content-Type") == "text/event-stream"
        seen = [next_event(answer) for _ in range(2)]
        assert [each["event"] for each in seen] == ["mail.deferred"] * 2
        put(db, 3, event="delivered")
        put(db, 4)
        while "data" not in (last := next_event(answer)):  # only the place, without an event
            assert last.keys() == {"id"}
        assert '"message_id":"4"' in last["data"]
    put(db, 5)
    with stream(api, token, "?kind=deferred", **{"Last-Event-ID": last["id"]}) as answer:
        assert '"message_id":"5"' in next_event(answer)["data"]
        db.execute("DELETE FROM api_secrets")
        assert answer.read() == b""  # the key is gone, and so is its stream


READ_LATELY = "SELECT read_at > now() - interval '1 minute' FROM event_subscriptions"


async def test_a_stream_is_a_reader_as_long_as_it_is_open(
    db: psycopg.Connection, as_api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_key(db, "shop", "events")
    config = whole_web_config().model_validate({"environment": {"hostname": "localhost"}})
    api = Api(Site(config, as_api, []))
    readers = events._Readers(api)
    connection = SimpleNamespace(ending=False, allow_time=lambda _: None)
    monkeypatch.setattr(events, "connection_of", lambda _: connection)

    async def write(_: bytes) -> None:
        pass

    async def renew() -> None:
        connection.ending = True

    caller = Caller("shop", "", frozenset({"events"}), (), "own")
    call: Any = SimpleNamespace(caller=caller, request=None, renew=renew)
    await readers._note(caller)
    db.execute("UPDATE event_subscriptions SET read_at = now() - interval '3 days'")
    db.commit()
    readers._noted.clear()  # as if a minute had passed
    response: Any = SimpleNamespace(write=write)
    await readers._send(call, response, await readers._begin(caller, None), None, [])
    assert column(db, READ_LATELY) == [True]
    listens = readers._news._task
    assert listens
    listens.cancel()
    await api.site.resources.close()


def test_a_stop_ends_streams(db: psycopg.Connection, api: ServedApi) -> None:
    token = make_key(db, "shop", "events")
    with stream(api, token) as answer:
        api.stop()
        assert answer.read() in (b"", b":\n\n")


@pytest.mark.slow
def test_streams_are_bounded(db: psycopg.Connection, api: ServedApi) -> None:
    token = make_key(db, "shop", "events")
    open_ones = [stream(api, token) for _ in range(MAX_WAITING_OF_KEY)]
    for each in open_ones:
        each.__enter__()
    busy = api.send("GET", "/v1/events?wait=5", token)
    assert (busy.status, busy.members["type"]) == (503, "urn:pgmta:problem:busy")
    page(api, token)
    for each in open_ones:
        each.__exit__(None, None, None)
    until(lambda: api.send("GET", "/v1/events?wait=1", token).status == 200)


MISTAKES: list[tuple[str, int, str, str]] = [
    ("after=x", 400, "invalid", "no cursor"),
    ("after=1.2.3&since=2020-01-01T00:00:00Z", 400, "invalid", "exclude"),
    ("since=2020-01-01T00:00:00", 400, "invalid", "since"),
    ("kind=delivered,bounce", 400, "invalid", "did you mean 'bounced'?"),
    ("limit=1001", 400, "invalid", "limit"),
    ("wait=31", 400, "invalid", "wait"),
    ("aftre=1.2.3", 400, "invalid", "'after'"),
    ("after=1.2.3", 409, "cursor-gone", "since"),
]


def test_mistakes(db: psycopg.Connection, api: ServedApi, subtests: pytest.Subtests) -> None:
    token = make_key(db, "shop", "events")
    for query, status, word, said in MISTAKES:
        with subtests.test(query=query):
            answer = api.send("GET", f"/v1/events?{query}", token)
            assert (answer.status, answer.members["type"]) == (status, f"urn:pgmta:problem:{word}")
            assert said in answer.members["detail"]
            assert answer.members["errors"]


def test_a_subscription_that_meets_an_open_transaction_is_tried_again(
    db: psycopg.Connection, database: str, api: ServedApi
) -> None:
    token = make_key(db, "shop", "events")
    with psycopg.connect(database) as application:
        attempt(application)
        answer = api.send("GET", "/v1/events", token)
        assert (answer.status, answer.headers["retry-after"]) == (503, "2"), answer.body
        assert fetch(db, "SELECT count(*) FROM event_subscriptions") == (0,)
    assert fetch(db, TRIED)[0] > 0
    db.execute("SELECT setval('event_triggers_tried', 0)")  # as if its pause were over
    assert page(api, token)["data"] == []
    assert fetch(db, TRIED) == (0,)


TRIED = "SELECT last_value FROM event_triggers_tried"


def test_keys_together_try_to_subscribe_now_and_then(
    db: psycopg.Connection, api: ServedApi
) -> None:
    """Intake waits behind each try."""
    soon = "extract(epoch FROM now() + '1 hour')::bigint"
    db.execute(f"SELECT setval('event_triggers_tried', {soon})".encode())
    tokens = [make_key(db, name, "events") for name in ("shop", "bank")]
    for token in tokens:
        answer = api.send("GET", "/v1/events", token)
        assert (answer.status, answer.members["type"]) == (503, "urn:pgmta:problem:busy")
        assert int(answer.headers["retry-after"]) > 0
    db.execute("SELECT events_subscribe('x', 'reader')")  # an operator is patient
    for token in tokens:
        assert page(api, token)["data"] == []
