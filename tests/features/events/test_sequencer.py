"""The sequencer in queued: events get their numbers at once, and another process takes over."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
import yaml

from pgmta_features.events import subscribing
from tests.features.events.event_log import events, send, subscribe
from tests.support.queuectl import queuectl
from tests.support.system import System
from tests.support.waiting import until


def kinds_of(db: psycopg.Connection, message: int) -> list[str | None]:
    return [event.kind for event in events(db) if event.message_id == message]


def wait_delivered(db: psycopg.Connection) -> None:
    message = send(db)
    until(lambda: kinds_of(db, message) == ["accepted", "delivered"])


@pytest.mark.slow
def test_another_process_numbers_when_one_dies(db: psycopg.Connection, system: System) -> None:
    hop = system.hop()
    first, second = system.queued(hop), system.queued(hop)
    subscribe(db)
    wait_delivered(db)
    for gone, came in ((first, None), (second, first)):
        gone.kill()
        if came:
            came.start()
        wait_delivered(db)


def test_queuectl_shows_events_and_subscriptions(
    db: psycopg.Connection, system: System, config: Path
) -> None:
    def run(*words: str) -> str:
        done = queuectl(config, "events", *words)
        assert done.exit_code == 0, done.output
        return done.output

    assert "nobody subscribes" in run()
    assert run("subscribe", "shop") == "shop subscribes\n"
    assert run("subscribe", "shop") == "shop subscribes already\n"
    system.queued(system.hop())
    message = send(db, "x@b.example")
    until(lambda: kinds_of(db, message) == ["accepted", "delivered"])
    accepted, delivered = run("--since", "2020-01-01 00:00").splitlines()[-2:]
    assert f" accepted     {message} <s@a.example> x@b.example" in accepted
    assert f" delivered    {message} <s@a.example> x@b.example 250 " in delivered
    found = [yaml.safe_load(line) for line in run("--json", "--message", str(message)).splitlines()]
    assert [each["type"] for each in found] == ["mail.accepted", "mail.delivered"]
    rest = run("--json", "--after", found[0]["cursor"], "--kind", "delivered").splitlines()
    assert [yaml.safe_load(line) for line in rest] == found[1:]
    assert "shop" in run("list")
    assert run("unsubscribe", "shop") == "shop subscribes no more\n"
    gone = queuectl(config, "events", "unsubscribe", "shop")
    assert (gone.exit_code, "no subscription shop" in gone.output) == (1, True)
    misspelt = queuectl(config, "events", "--kind", "delivred")
    assert (misspelt.exit_code, "did you mean 'delivered'" in misspelt.output) == (2, True)
    lost = queuectl(config, "events", "--after", "1.2.3")
    assert (lost.exit_code, "does not have" in lost.output) == (1, True)


def test_a_command_names_the_transaction_that_it_waits_for(
    db: psycopg.Connection, database: str, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscribing, "_REPEAT_S", 0.0)
    message = send(db)
    with psycopg.connect(database) as application:
        application.execute("SELECT cancel(%s)", (message,))
        done = queuectl(config, "events", "subscribe", "shop")
        named = f"has changed mail: pid {application.info.backend_pid} ("
        assert (done.exit_code, named in done.output) == (1, True), done.output
