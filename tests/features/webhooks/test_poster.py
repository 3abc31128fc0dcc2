"""queued posts events: in order, again after crashes and failures, and only where it may."""

from __future__ import annotations

import email
import email.policy
import time
from typing import Any

import psycopg
import pytest
from standardwebhooks.webhooks import Webhook

from pgmta_features.webhooks.signing import Secrets
from tests.features.metrics.scraping import Scrape
from tests.features.providers.scripted_server import CUT, HANG, HELD, Got, said
from tests.features.webhooks.conftest import Add
from tests.features.webhooks.receiver import OK, Receiver, events_of
from tests.support.nexthop import Do, Transaction
from tests.support.rows import fetch
from tests.support.system import System
from tests.support.waiting import free_port, take_time, until

CHANGED = "SELECT pgmta.notify_channel('pgmta_orders')"
REFUSED = said("422 Unprocessable Content")


def no_such_user(asked: str, argument: str, _: Transaction | None) -> Do | None:
    return Do(line="550 5.1.1 no such user") if asked == "RCPT" and "bad" in argument else None


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("mail.") for event in events]


def state(db: psycopg.Connection, endpoint: int) -> str:
    (found,) = fetch(db, "SELECT state FROM pgmta.webhooks WHERE id = %s", endpoint)
    return str(found)


def try_at_once(db: psycopg.Connection) -> None:
    """End all pauses after failures, as if they were over."""
    db.execute("UPDATE pgmta.webhooks SET next_at = NULL, revision = revision + 1")
    db.execute(CHANGED)


def test_outcomes_are_posted_signed_and_in_order(
    system: System, db: psycopg.Connection, add: Add, receiver: Receiver,
    settings: dict[str, Any], known: Secrets,
) -> None:  # fmt: skip
    add(receiver.url())
    add(receiver.url("/bounced"), "bounced", kinds=["bounced"])
    add(receiver.url("/one"), "one", condition='{"domain": ["c.example"]}')
    (secret,) = fetch(db, "SELECT secret FROM pgmta.webhooks WHERE name = 'shop'")
    system.queued(system.hop(no_such_user), **settings)
    for recipient in ("good@c.example", "bad@c.example", "good@d.example"):
        system.enqueue(recipient, sender="shop@b.example")
    until(lambda: len(receiver.events()) == 6)
    found = receiver.events()
    assert sorted(kinds(found)) == ["accepted"] * 3 + ["bounced"] + ["delivered"] * 2
    for message in {event["message_id"] for event in found}:
        assert kinds([e for e in found if e["message_id"] == message])[0] == "accepted"
    assert len({event["id"] for event in found}) == 6
    for request in receiver.got():
        document = Webhook(known.find(secret) or "").verify(request.body, request.fields)
        assert document["type"] == "mail.events"
    (bounced,) = until(lambda: receiver.events("/bounced"))
    assert (bounced["recipient"], bounced["code"]) == ("bad@c.example", 550)
    until(lambda: len(receiver.events("/one")) == 4)
    assert {
        e.get("recipient", "@c.example").partition("@")[2] for e in receiver.events("/one")
    } == {"c.example"}


def test_a_batch_has_the_same_id_after_a_kill_between_answer_and_cursor(
    system: System, db: psycopg.Connection, add: Add, receiver: Receiver, settings: dict[str, Any]
) -> None:
    add(receiver.url(), kinds=["accepted"])
    receiver.answering["/"] = lambda _: [HELD, *OK]
    daemon = system.queued(system.hop(), **settings)
    system.enqueue("first@c.example")
    until(receiver.got)
    daemon.kill()
    system.enqueue("second@c.example")  # is behind the batch that was under way
    db.execute("DELETE FROM pgmta.daemons")  # as if its last heartbeat were long ago
    receiver.release()
    system.queued(system.hop(), **settings)
    until(lambda: len(receiver.events()) >= 3)
    first, again, *_ = receiver.got()
    assert first.fields["webhook-id"] == again.fields["webhook-id"]
    assert first.body == again.body
    assert [event["recipients"] for event in receiver.events()] == [
        ["first@c.example"], ["first@c.example"], ["second@c.example"],
    ]  # fmt: skip


def test_another_process_takes_the_endpoints_of_a_dead_one(
    system: System, db: psycopg.Connection, add: Add, receiver: Receiver, settings: dict[str, Any]
) -> None:
    add(receiver.url(), kinds=["accepted"])
    holder = "SELECT leased_by FROM pgmta.webhooks WHERE leased_by IS NOT NULL"
    first = system.queued(system.hop(), **settings)
    until(lambda: db.execute(holder).fetchone())
    second = system.queued(system.hop(), **settings)
    system.enqueue("1@c.example")
    until(receiver.got)
    first.stop()  # gives them back
    system.enqueue("2@c.example")
    until(lambda: len(receiver.events()) == 2, describe="the second process posts")
    assert second.alive


@pytest.mark.slow
def test_failures_are_repeated_and_a_success_ends_them(
    system: System, db: psycopg.Connection, add: Add, receiver: Receiver, settings: dict[str, Any]
) -> None:
    endpoint = add(receiver.url(), kinds=["accepted"])
    past = "Retry-After: Mon, 01 Jan 0001 00:00:00 GMT"
    answers = [said("503 x", b"", past), said("302 Found", b"", "Location: /"),
               said("429 x", b"", past), OK]  # fmt: skip
    receiver.answering["/"] = lambda _: answers[min(len(receiver.got()), 4) - 1]
    system.queued(system.hop(), **settings)
    system.enqueue("1@c.example")
    until(lambda: len(receiver.got()) == 2)
    until(lambda: fetch(db, "SELECT failures FROM pgmta.webhooks")[0] == 2)
    assert state(db, endpoint) == "failing"
    reason, failing = fetch(db, "SELECT reason, failing_since IS NOT NULL FROM pgmta.webhooks")
    assert (reason, failing) == ("302 Found: redirects are not followed", True)
    system.enqueue("2@c.example")
    try_at_once(db)
    until(lambda: fetch(db, "SELECT failures FROM pgmta.webhooks")[0] == 3)
    assert fetch(db, "SELECT next_at > now() + '1 minute' FROM pgmta.webhooks") == (True,)
    try_at_once(db)
    until(lambda: len(receiver.got()) >= 5)
    until(lambda: state(db, endpoint) == "active")
    assert len({each.fields["webhook-id"] for each in receiver.got()[:4]}) == 1
    assert [e["recipients"] for e in receiver.events()[3:]] == [["1@c.example"], ["2@c.example"]]


def test_an_event_that_is_refused_is_set_aside_and_can_be_posted_again(
    system: System, db: psycopg.Connection, add: Add, receiver: Receiver, settings: dict[str, Any]
) -> None:
    endpoint = add(receiver.url(), kinds=["accepted"], batch=7)
    bad = {"0@c.example", "4@c.example", "19@c.example"}
    refusing = [True]

    def answer(got: Got) -> list[bytes]:
        if not refusing or bad.isdisjoint(to for e in events_of(got) for to in e["recipients"]):
            return OK
        return REFUSED

    def taken() -> set[str]:
        good = (got for got in receiver.got() if answer(got) is OK)
        return {to for got in good for event in events_of(got) for to in event["recipients"]}

    receiver.answering["/"] = answer
    for number in range(21):
        system.enqueue(f"{number}@c.example")
    system.queued(system.hop(), **settings)
    until(lambda: fetch(db, "SELECT count(*) FROM pgmta.webhook_failures")[0] == 3)
    until(lambda: state(db, endpoint) == "active")
    until(lambda: taken() == {f"{n}@c.example" for n in range(21)} - bad)
    refusing.clear()
    before = len(receiver.got())
    db.execute("SELECT pgmta.webhook_replay(%s)", (endpoint,))
    until(lambda: fetch(db, "SELECT count(*) FROM pgmta.webhook_failures")[0] == 0)
    again = [
        to for got in receiver.got()[before:] for e in events_of(got) for to in e["recipients"]
    ]
    assert set(again) == bad


@pytest.mark.slow
def test_a_lone_event_that_is_refused_does_not_hold_up_the_next_one(
    system: System, db: psycopg.Connection, add: Add, receiver: Receiver, settings: dict[str, Any]
) -> None:
    add(receiver.url(), kinds=["accepted"], batch=1)
    receiver.answering["/"] = lambda got: REFUSED if b"bad@c.example" in got.body else OK
    system.queued(system.hop(), **settings)
    system.enqueue("bad@c.example")
    until(receiver.got)
    db.execute("UPDATE pgmta.webhooks SET failures = 9, revision = revision + 1")
    db.execute(CHANGED)  # the next pause is two hours
    until(lambda: fetch(db, "SELECT next_at > now() + '1 hour' FROM pgmta.webhooks") == (True,))
    system.enqueue("good@c.example")
    until(lambda: fetch(db, "SELECT count(*) FROM pgmta.webhook_failures") == (1,))
    until(lambda: fetch(db, "SELECT state FROM pgmta.webhooks") == ("active",))
    assert ["good@c.example"] in [e["recipients"] for e in receiver.events()]


@pytest.mark.slow
def test_an_endpoint_that_refuses_everything_is_asked_seldom_and_again_soon(
    system: System, db: psycopg.Connection, add: Add, receiver: Receiver, settings: dict[str, Any]
) -> None:
    """New events cause trials, ever fewer; they count as no failures and move no retry."""
    add(receiver.url(), kinds=["accepted"])
    receiver.answering["/"] = lambda _: said("400 Bad Request")
    system.queued(system.hop(), **settings)
    for number in range(20):
        system.enqueue(f"{number}@c.example")
        take_time(0.5)
    assert len(receiver.got()) <= 15
    failures, seconds = fetch(
        db, "SELECT failures, extract(epoch FROM next_at - now())::float8 FROM pgmta.webhooks"
    )
    assert failures <= 2
    assert seconds < 35
    receiver.answering.clear()
    mended, sent = time.monotonic(), 20
    while fetch(db, "SELECT state FROM pgmta.webhooks") != ("active",):
        system.enqueue(f"{sent}@c.example")
        sent += 1
        take_time(0.5)
    assert time.monotonic() < mended + 20
    until(lambda: {to for e in receiver.events() for to in e["recipients"]} == {
        f"{number}@c.example" for number in range(sent)})  # fmt: skip
    assert fetch(db, "SELECT count(*) FROM pgmta.webhook_failures") == (0,)


def test_an_endpoint_that_refuses_everything_loses_nothing(
    system: System, db: psycopg.Connection, add: Add, receiver: Receiver, settings: dict[str, Any]
) -> None:
    endpoint = add(receiver.url("/wrong"), kinds=["accepted"])
    receiver.answering["/wrong"] = lambda _: said("404 Not Found")
    system.queued(system.hop(), **settings)
    for number in range(5):
        system.enqueue(f"{number}@c.example")
    until(lambda: state(db, endpoint) == "failing")
    assert fetch(db, "SELECT count(*) FROM pgmta.webhook_failures") == (0,)
    changes = f'{{"url": "{receiver.url("/right")}"}}'
    db.execute("SELECT pgmta.webhook_change(%s, %s)", (endpoint, changes))
    until(lambda: len(receiver.events("/right")) == 5)
    until(lambda: state(db, endpoint) == "active")


def test_status_410_suspends_and_tells_the_owner(
    system: System, db: psycopg.Connection, add: Add, receiver: Receiver, settings: dict[str, Any]
) -> None:
    endpoint = add(receiver.url(), kinds=["accepted"], owner="own@d.example")
    receiver.answering["/"] = lambda _: said("410 Gone")
    hop, page = system.hop(), free_port()
    system.queued(hop, metrics={"listen": f"127.0.0.1:{page}"}, **settings)

    def suspended() -> float:
        return Scrape.of(page).value(
            "pgmta_queued_webhook_suspended", id=str(endpoint), webhook="shop"
        )

    system.enqueue("1@c.example")
    until(lambda: state(db, endpoint) == "suspended")  # which doctor names
    db.execute(CHANGED)
    until(lambda: suspended() == 1)
    system.wait_empty()
    assert ["own@d.example"] in [found.recipients for found in hop.transactions]
    receiver.answering.clear()
    system.enqueue("2@c.example")
    db.execute("SELECT pgmta.webhook_enable(%s, true)", (endpoint,))
    until(lambda: len(receiver.events()) == 4)  # no event was lost meanwhile
    assert suspended() == 0
    found = [event["recipients"] for event in receiver.events()[1:]]
    assert found == [["1@c.example"], ["own@d.example"], ["2@c.example"]]


def test_three_days_of_failures_suspend_with_one_mail_to_the_owner(
    system: System, db: psycopg.Connection, add: Add, receiver: Receiver, settings: dict[str, Any]
) -> None:
    system.expected.add("webhook suspended after three days of failures")
    endpoint = add(receiver.url("/hook?token=secret"), kinds=["delivered"], owner="own@d.example")
    receiver.answering["/hook?token=secret"] = lambda _: said("500 x")
    hop = system.hop()
    system.queued(hop, bounces={"from": "Mail <mail@b.example>"}, **settings)
    system.enqueue("1@c.example")
    until(lambda: state(db, endpoint) == "failing")
    db.execute(
        "UPDATE pgmta.webhooks SET failing_since = now() - interval '73 hours', failures = 9"
    )
    try_at_once(db)
    until(lambda: state(db, endpoint) == "suspended")
    system.wait_empty()
    found = [t for t in hop.transactions if t.recipients == ["own@d.example"]]
    notice = email.message_from_bytes(found[0].content or b"", policy=email.policy.default)
    assert notice["From"] == "Mail <mail@b.example>"
    assert "shop" in notice["Subject"]
    body = notice.get_content()
    assert "failed for three days." in body
    assert "queuectl webhook enable shop" in body
    assert "500 x" in body
    assert "secret" not in body
    assert len(found) == 1


def test_two_secrets_sign_while_one_is_rotated(
    system: System, db: psycopg.Connection, add: Add, receiver: Receiver,
    settings: dict[str, Any], known: Secrets,
) -> None:  # fmt: skip
    endpoint = add(receiver.url(), kinds=["accepted"])
    (old,) = fetch(db, "SELECT secret FROM pgmta.webhooks")
    new = known.new_reference()
    system.queued(system.hop(), **settings)
    db.execute("SELECT pgmta.webhook_rotate(%s, %s)", (endpoint, new))
    system.enqueue("1@c.example")
    (got,) = until(receiver.got)
    assert len(got.fields["webhook-signature"].split()) == 2
    for reference in (old, new or ""):
        Webhook(known.find(reference) or "").verify(got.body, got.fields)


@pytest.mark.parametrize("whose", [
    "tenant = 'acme'", "created_by = 'key:shop'",
])  # fmt: skip
def test_what_an_endpoint_of_a_tenant_or_key_may_not_reach(
    system: System, db: psycopg.Connection, add: Add, receiver: Receiver,
    settings: dict[str, Any], whose: str,
) -> None:  # fmt: skip
    endpoint = add(receiver.url())
    db.execute(f"UPDATE pgmta.webhooks SET {whose}".encode())
    system.queued(system.hop(), **settings)
    system.enqueue("1@c.example", tenant="acme")
    until(lambda: state(db, endpoint) == "failing")
    (reason,) = fetch(db, "SELECT reason FROM pgmta.webhooks")
    assert reason == "the host has no public address"
    assert receiver.got() == []


BAD = {
    "hang": [HANG],
    "fail": said("500 x"),
    "reset": [CUT],
    "gone": said("410 Gone"),
    "inward": said("302 Found", b"", "Location: http://127.0.0.1:22/"),
}


def test_bad_endpoints_hold_up_no_other(
    system: System, db: psycopg.Connection, add: Add, receiver: Receiver, settings: dict[str, Any]
) -> None:
    """How long the others take is measured by bench/events."""
    bad = [f"{kind}{number}" for kind in BAD for number in range(5)]
    for name in bad:
        add(receiver.url(f"/{name}"), name)
        receiver.answering[f"/{name}"] = lambda _, parts=BAD[name[:-1]]: parts  # type: ignore[misc]
    good = [f"good{number}" for number in range(10)]
    for name in good:
        add(receiver.url(f"/{name}"), name, kinds=["delivered"])
    system.queued(system.hop(), **settings)
    for number in range(20):
        system.enqueue(f"{number}@c.example")
    until(lambda: all(len(receiver.events(f"/{name}")) == 20 for name in good))
    until(lambda: all(receiver.got(f"/{name}") for name in bad))
    suspended = "SELECT count(*) FROM pgmta.webhooks WHERE state = 'suspended'"
    until(lambda: fetch(db, suspended) == (5,))
