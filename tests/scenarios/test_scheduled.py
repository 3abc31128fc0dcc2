"""Mail that is sent at a time, and never before it by the clock of the database."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner

from queued.cli.queuectl import main
from tests.scenarios.test_wake_up import NEVER, WATCHES, wait_watched
from tests.scenarios.test_wake_up import submit as commit
from tests.support.nexthop import at
from tests.support.rows import message, row
from tests.support.system import System
from tests.support.waiting import SLACK, until

MAIL = b"From: s@a.example\r\nSubject: x\r\n\r\nx\r\n"
SEEN = """
CREATE TABLE public.claims (recipient text, send_at timestamptz, claimed_at timestamptz);
CREATE FUNCTION public.seen() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN INSERT INTO public.claims VALUES (NEW.recipient, NEW.send_at, now()); RETURN NULL; END $$;
CREATE TRIGGER seen AFTER UPDATE ON pgmta.queue FOR EACH ROW
WHEN (NEW.status = 'SENDING' AND OLD.status <> 'SENDING') EXECUTE FUNCTION public.seen()
"""
CLAIMS = (
    "SELECT state_change FROM pg_stat_activity"
    " WHERE application_name LIKE '%% claim' AND datname = current_database()"
)


@pytest.fixture
def watched(system: System) -> Iterator[System]:
    """An installation whose database notes each claim; at the end none of them was early."""
    yield from note_claims(system)


def note_claims(system: System) -> Iterator[System]:
    """Have each claim noted, and look for early ones at the end."""
    with psycopg.connect(system.uri) as db:
        db.execute(SEEN)
    yield system
    early = system.ask("SELECT * FROM public.claims WHERE claimed_at < send_at")
    assert early == []


def submit(system: System, ahead: str, *names: str, more: str = "") -> int:
    """Submit mail for these people that is due in that time."""
    people = [f"{name}@hop.example" for name in names]
    (found,) = system.ask(
        f"SELECT pgmta.submit('s@a.example', %s, %b, send_at => now() + %s::interval{more})",
        people, MAIL, ahead,
    )  # fmt: skip
    return int(found["submit"])


def lateness(system: System) -> dict[str, float]:
    """Seconds from send_at to the claim, by local part."""
    rows = system.ask(
        "SELECT recipient, extract(epoch FROM claimed_at - send_at)::float8 AS late"
        " FROM public.claims"
    )
    return {each["recipient"].partition("@")[0]: each["late"] for each in rows}


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_each_row_leaves_at_its_time(watched: System, workers: int) -> None:
    """Beside other mail, also if only an event can wake a single worker."""
    hop = watched.hop()
    for _ in range(workers):
        watched.queued(hop, process=NEVER if workers == 1 else {})
    wait_watched(watched, workers)
    names = {f"r{n}": f"{ahead} s" for n, ahead in enumerate((0.3, 1.2, 2.5, 3.1, 3.2, 4, 4))}
    for name, ahead in names.items():
        submit(watched, ahead, name)
    for n in range(3):  # NOTIFYs of other mail
        watched.enqueue(f"plain{n}@hop.example")
        hop.wait_kept(n + 1)
    watched.wait_empty()
    assert hop.deliveries() == {f"{name}@hop.example": 1 for name in (*names, "plain0", "plain1",
                                                                     "plain2")}  # fmt: skip
    late = lateness(watched)
    assert all(0 <= late[name] < SLACK for name in names)


@pytest.mark.slow
def test_the_news_of_a_scheduled_row_may_find_other_mail(watched: System) -> None:
    """The claim after the NOTIFY of the duty is not in vain, and the worker looks ahead anyway."""
    hop = watched.hop()
    watched.queued(hop, process=NEVER | {"watch": None})
    listening = "SELECT pid FROM pg_stat_activity WHERE query LIKE 'LISTEN%%' AND state = 'idle'"
    until(lambda: watched.ask(f"{listening} AND datname = current_database()"))
    watched.enqueue("first@hop.example")
    watched.wait_empty()
    submit(watched, "4 s", "r")
    commit(watched, "other@hop.example")  # without NOTIFY
    assert watched.rows()["r@hop.example"]["status"] == "SCHEDULED"
    watched.wait_empty()


@pytest.mark.slow
def test_many_rows_of_one_second_leave(watched: System) -> None:
    hop = watched.hop()
    queued = watched.queued(hop)
    watched.ask(
        "SELECT count(pgmta.submit('s@a.example', ARRAY[n || '@hop.example'], %b,"
        " send_at => now() + make_interval(secs => 4 + n / 2000.0)))"
        " FROM generate_series(1, 2000) AS n",
        MAIL,
    )
    watched.wait_empty()
    assert len(hop.deliveries()) == 2000
    assert len(lateness(watched)) == 2000
    queued.stop()


@pytest.mark.slow
def test_mail_whose_time_came_while_nobody_ran_leaves_at_a_start(watched: System) -> None:
    hop = watched.hop()
    submit(watched, "2.5 s", "late")
    until(lambda: watched.ask("SELECT id FROM queue WHERE send_at < now()"))
    assert [each["status"] for each in watched.queue()] == ["SCHEDULED"]
    watched.queued(hop)
    watched.wait_empty()
    assert hop.deliveries() == {"late@hop.example": 1}


@pytest.mark.slow
def test_commits_of_scheduled_rows_wake_nobody(system: System) -> None:
    hop = system.hop()
    system.queued(hop, process=NEVER, urgent={"priority": None})
    wait_watched(system)

    def looks(number: int) -> None:
        seen = {str(system.ask(WATCHES))}
        while len(seen) < number:
            seen.add(str(until(lambda: system.ask(WATCHES))))

    before: list[Any] = []
    for n in range(40):
        if n == 20:  # the first look is news, and so are the ends of 16 transactions after it
            before = system.ask(CLAIMS)
        submit(system, "1 day", f"a{n}", f"b{n}")
        looks(3)
    assert system.ask(CLAIMS) == before
    submit(system, "0.1 s", "near")  # the watch sees it
    hop.wait_kept(1)


@pytest.mark.slow
def test_a_row_that_is_held_and_released_waits_for_its_time(
    watched: System, tmp_path: Path
) -> None:
    """By each way, far ahead and within the two seconds in which a row is QUEUED."""
    hop = watched.hop()
    config = watched.queued(
        hop,
        workers=[
            {"name": "deliver"},
            {"name": "free", "action": "release", "where": "recipient LIKE 'worker%'"},
        ],
    ).path
    wait_watched(watched)
    ways = {
        "sql": "SELECT pgmta.queue_hold($$recipient LIKE 'sql%'$$, 'x');"
               "SELECT pgmta.queue_release($$recipient LIKE 'sql%'$$)",
        "update": "UPDATE pgmta.queue SET status = 'HOLD' WHERE recipient LIKE 'update%';"
                  "UPDATE pgmta.queue SET status = 'QUEUED' WHERE recipient LIKE 'update%'",
        "expiry": "SELECT pgmta.queue_hold($$recipient LIKE 'expiry%'$$, 'x', '0 s')",
        "worker": "SELECT pgmta.queue_hold($$recipient LIKE 'worker%'$$, 'x')",
        "retry": "SELECT pgmta.queue_retry($$recipient LIKE 'retry%'$$)",
        "due": "UPDATE pgmta.queue SET next_attempt = now() WHERE recipient LIKE 'due%'",
    }  # fmt: skip
    for ahead in ("1.5 s", "4 s"):
        for way, statements in ways.items():
            submit(watched, ahead, f"{way}-{ahead[0]}")
            for statement in statements.split(";"):
                watched.ask(statement.replace("%", "%%"))
        submit(watched, ahead, f"cli-{ahead[0]}")
        for command in (["hold", "--reason", "x"], ["release"], ["retry"]):
            done = CliRunner().invoke(
                main, [*command, "--recipient", "cli*", "--yes", "-c", str(config)]
            )
            assert done.exit_code == 0, done.output
    watched.wait_empty()
    assert len(hop.deliveries()) == 2 * (len(ways) + 1)


@pytest.mark.slow
def test_a_message_that_is_deferred_is_tried_for_as_long_as_any(watched: System) -> None:
    """Six days in the queue count for nothing."""
    hop = watched.hop(at("end of data", "451 4.0.0 later", times=2))
    watched.queued(
        hop, retry={"intervals": ["1s"], "jitter": 0.0, "expire": "1h"}, bounces={"delay": ["30m"]}
    )
    submit(watched, "6 days", "r", more=", on_failed => 'bounce'")
    watched.ask("UPDATE messages SET received_at = now() - interval '6 days'")
    # six days later
    watched.ask(
        "UPDATE queue SET send_at = now() + interval '3 s', ts = now() + interval '3 s',"
        " next_attempt = now() + interval '3 s'"
    )
    watched.wait_empty()
    assert watched.events("r@hop.example") == ["deferred", "deferred", "delivered"]
    assert watched.ask("SELECT row_id FROM reports UNION ALL SELECT row_id FROM delays") == []


@pytest.mark.slow
def test_a_lost_lease_beside_many_scheduled_rows_is_settled(system: System) -> None:
    with psycopg.connect(system.uri) as db:
        db.execute("SET search_path = pgmta")
        message(db, 1)
        db.execute(
            "INSERT INTO queue (message_id, sender, recipient, domain, status, once, send_at)"
            " SELECT 1, '', 'r', 'd', 'SCHEDULED', true, now() + interval '1 day'"
            " FROM generate_series(1, 50000)"
        )
        row(db, 1, once=True, status="SENDING", lease=-1, lease_token=7, begun=7)
    system.queued(system.hop())
    began = datetime.now(UTC)
    until(lambda: system.ask("SELECT id FROM queue WHERE status = 'HOLD'"))
    # the whole of these rows took 20 s
    assert datetime.now(UTC) - began < timedelta(seconds=SLACK + 4)


def test_commands_say_when_it_is_sent(system: System) -> None:
    hop = system.hop()
    config = str(system.queued(hop).path)

    def run(*arguments: str) -> str:
        done = CliRunner().invoke(main, [*arguments, "-c", config])
        assert done.exit_code == 0, done.output
        return done.output

    content = system.folder / "mail.eml"
    content.write_bytes(MAIL)
    number = run(
        "send", "--raw", str(content), "--recipient", "r@hop.example",
        "--at", "2035-01-31T09:30:00+01:00", "--deadline", "2035-02-01T09:30:00Z",
    ).strip()  # fmt: skip
    (found,) = json.loads(run("list", "--json"))
    assert (found["status"], found["metadata"]) == (
        "SCHEDULED", {"_deadline": "2035-02-01T09:30:00Z"},
    )  # fmt: skip
    when = "2035-01-31 08:30:00+0000"
    assert f"{when}  -" in run("show", number)
    explained = run("explain", number)
    assert f"it is sent at {when}" in explained
    assert "worker     deliver" in explained
    assert f"next       {when}" in explained
    state = _line(run("status", number))
    assert "scheduled" in state
    assert when in state
    assert _line(run("list")).split()[1:3] == ["SCHEDULED", "-"]
    assert _line(run("list", "--count")).split() == ["SCHEDULED", "1", "-"]
    run("hold", "--id", number, "--reason", "wait", "--yes")
    assert f"releases it, but not sent before {when}: wait" in run("explain", number)
    assert run("cancel", number).strip() == f"message {number}: stopped 1 recipients"
    for bad in ("tomorrow", "03/04/2035 09:30", "2035-13-01T00:00:00Z"):
        done = CliRunner().invoke(
            main,
            [
                "send",
                "--raw",
                str(content),
                "--recipient",
                "r@b.example",
                "--at",
                bad,
                "-c",
                config,
            ],
        )
        assert done.exit_code == 2
        assert f"--at {bad!r}: " in done.output


def _line(output: str) -> Any:
    return output.splitlines()[1]
