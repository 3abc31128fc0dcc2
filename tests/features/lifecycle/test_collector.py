"""Collectors at work: when batches leave, and that no token is lost or doubled."""

from __future__ import annotations

import json
import random
import threading
from bisect import bisect_left
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgmta.compose.template import TemplateSource
from pgmta_features.lifecycle.account_checks import AccountChecks
from pgmta_features.lifecycle.config import CollectorBudget
from pgmta_features.lifecycle.installation import install
from pgmta_features.lifecycle.timing import Timing
from tests.features.lifecycle.shop import open_shop
from tests.features.lifecycle.tokens import (
    ACTIONS,
    add_accounts,
    collect,
    put_template,
    put_templates,
    settings,
)
from tests.features.metrics.scraping import Scrape
from tests.sql.test_roles import acting
from tests.support.database import PrivateServer
from tests.support.operating import diagnosed
from tests.support.rows import column, fetch
from tests.support.system import System
from tests.support.waiting import free_port, take_time, until

MAILS = "SELECT count(*) FROM pgmta.messages"
END_COLLECTORS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND application_name LIKE '%collector%'
"""
ONE_EACH = """
SELECT count(*), count(DISTINCT recipient), (SELECT count(*) FROM lifecycle.tokens),
    (SELECT count(*) FROM lifecycle.waiting_tokens)
FROM pgmta.queue
"""


def held(system: System) -> dict[str, Any]:
    """Workers that deliver nothing, so that mail stays in the queue."""
    return {"workers": [{"name": "none", "where": "false"}]}


def batches(db: psycopg.Connection) -> list[tuple[int, str, datetime]]:
    return db.execute("SELECT taken, reason, began_at FROM collections ORDER BY id").fetchall()


# -- when a batch is due --


def test_a_fixed_timeout_counts_from_the_first_token() -> None:
    timing = Timing(limit=3, timeout=5)
    timing.see([], 0.0)
    assert timing.reason(100.0) == ""
    timing.see([1, 2], 100.0)
    assert (timing.reason(100.0), timing.due) == ("", 105.0)
    timing.see([1, 2, 3], 101.0)
    assert timing.reason(101.0) == "limit"
    timing.end(cost=1.0, full=False, now=101.0)
    timing.see([2, 4], 102.0)
    assert (timing.reason(102.0), timing.due) == ("", 105.0)
    assert timing.reason(105.0) == "timeout"
    timing.see([4], 105.0)
    assert timing.due == 107.0


def test_an_adaptive_timeout_follows_what_batches_cost() -> None:
    timing = Timing(limit=3, timeout=None)
    timing.see([1], 100.0)
    assert (timing.reason(100.0), timing.timeout) == ("timeout", 0.0), "it is idle"
    timing.end(cost=0.02, full=False, now=100.02)
    assert timing.timeout == 0.08
    timing.see([2], 100.03)
    assert (timing.reason(100.09), timing.reason(100.11)) == ("", "timeout")
    timing.see([2, 3, 4], 100.04)
    assert timing.reason(100.04) == "limit"
    timing.end(cost=0.5, full=True, now=100.5)
    timing.see([5], 100.5)
    assert (timing.reason(100.5), timing.timeout) == ("timeout", 0.0), "more may wait"
    timing.end(cost=5.0, full=False, now=110.0)
    assert timing.timeout == 0.25


def test_what_comes_during_a_batch_is_the_next_one(
    accounts: psycopg.Connection, database: str, system: System, tmp_path: Path
) -> None:
    """So batches grow with the load."""
    daemon = system.queued(**settings(tmp_path, limit=50, timeout=None), **held(system))
    daemon.wait_log("connected")
    with psycopg.connect(database) as other:
        other.execute("LOCK TABLE pgmta.messages IN SHARE ROW EXCLUSIVE MODE")
        add_accounts(accounts, 1, "first")
        waiting = (
            "SELECT FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))"
            " AND application_name LIKE '%%collector%%'"
        )
        until(lambda: accounts.execute(waiting, (other.info.backend_pid,)).fetchall())
        for number in range(60):
            add_accounts(accounts, 1, f"n{number}-")
    until(lambda: fetch(accounts, MAILS) == (61,))
    assert fetch(accounts, ONE_EACH) == (61, 61, 61, 0)
    assert [taken for taken, _, _ in batches(accounts)] == [1, 50, 10]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["one transaction", "five transactions", "two bursts"])
def test_three_leave_at_once_and_two_at_the_timeout(
    accounts: psycopg.Connection, system: System, tmp_path: Path, way: str
) -> None:
    daemon = system.queued(**settings(tmp_path, limit=3, timeout="5s"), **held(system))
    daemon.wait_log("waits for tokens")
    sizes = {"one transaction": [5], "five transactions": [1] * 5, "two bursts": [2, 3]}[way]
    (began,) = fetch(accounts, "SELECT clock_timestamp()")
    for number, size in enumerate(sizes):
        add_accounts(accounts, size, f"burst{number}-")
    until(lambda: len(batches(accounts)) == 2)
    (first, why, at), (second, later, then) = batches(accounts)
    assert (first, why, second, later) == (3, "limit", 2, "timeout")
    assert (at - began).total_seconds() < 2.5  # a slow machine
    assert 4.7 <= (then - began).total_seconds() < 7.5


def test_what_waits_leaves_at_once(
    accounts: psycopg.Connection, system: System, tmp_path: Path
) -> None:
    add_accounts(accounts, 500)
    system.queued(**settings(tmp_path, timeout="60s", healthcheck="60s"), **held(system))
    until(lambda: fetch(accounts, MAILS) == (500,))
    assert [taken for taken, _, _ in batches(accounts)] == [10] * 50
    assert fetch(accounts, ONE_EACH) == (500, 500, 500, 0)


def test_recoveries_go_first(accounts: psycopg.Connection) -> None:
    add_accounts(accounts, 20)
    add_accounts(accounts, 1, "lost", status="active")
    accounts.execute("SELECT recover('lost1')")
    assert collect(accounts)[0] == 10
    rows = accounts.execute("SELECT recipient, priority FROM pgmta.queue ORDER BY id").fetchall()
    assert rows[0] == ("lost1@b.example", 1)
    assert rows[1] == ("u1@b.example", 4)
    words = "SELECT params #>> '{words,minutes}' FROM pgmta.messages ORDER BY id LIMIT 1"
    assert fetch(accounts, words) == ("15",)


# -- nothing is lost or doubled --


@pytest.mark.slow
@pytest.mark.parametrize("number", [2, 4, 8])
def test_collectors_share_tokens_whose_commits_come_late(
    accounts: psycopg.Connection, database: str, system: System, tmp_path: Path, number: int
) -> None:
    for _ in range(number):
        config = settings(tmp_path, limit=37, timeout="200ms", healthcheck="30s")
        system.queued(ready=False, **config, **held(system))

    def insert(session: int) -> None:
        chance = random.Random(session)
        with psycopg.connect(database) as db:
            for part in range(25):
                add_accounts(db, 50, f"s{session}p{part}-")
                take_time(chance.random() * 0.1)  # ids of other sessions are later, and committed
                db.commit()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(insert, range(8)))
    until(lambda: fetch(accounts, MAILS) == (10_000,), timeout=60)
    assert fetch(accounts, ONE_EACH) == (10_000, 10_000, 10_000, 0)


@pytest.mark.slow
def test_random_kills(private_server: PrivateServer, tmp_path: Path, request) -> None:  # type: ignore[no-untyped-def]
    chance = random.Random(request.config.getoption("--faults-seed"))
    uri = private_server.uri
    install(uri)
    with psycopg.connect(uri, autocommit=True) as db:
        put_templates(db)
    system = System(tmp_path, uri)
    config = settings(tmp_path, limit=7, timeout="50ms", healthcheck="5s")
    rounds = 100 if request.config.getoption("--submission-rounds") > 2 else 20
    made, done = 0, threading.Event()

    def insert() -> None:
        nonlocal made
        while not done.is_set():
            try:
                with psycopg.connect(uri, autocommit=True) as db:
                    while not done.is_set():
                        add_accounts(db, 3, f"n{made}-")
                        made += 1
                        take_time(0.01)
            except psycopg.Error:
                made += 1  # the answer was lost; these may be there
                take_time(0.05)

    writer = threading.Thread(target=insert)
    writer.start()
    try:
        collectors = [system.queued(ready=False, **config, **held(system)) for _ in range(2)]
        for _ in range(rounds):
            take_time(chance.random() * 0.2)
            match chance.randrange(3):
                case 0:
                    victim = chance.choice(collectors)
                    victim.kill()
                    victim.start()
                case 1:
                    private_server.crash()
                    private_server.start()
                case 2:
                    with psycopg.connect(uri, autocommit=True) as db:
                        db.execute(
                            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                            " WHERE application_name LIKE 'pgmta queued collector%'"
                        )
        done.set()
        writer.join()
        with psycopg.connect(uri, autocommit=True) as db:
            until(lambda: fetch(db, "SELECT count(*) FROM lifecycle.waiting_tokens") == (0,), 60)
            mails, recipients, tokens, _ = fetch(db, ONE_EACH)
            assert mails == recipients == tokens > rounds
            assert fetch(db, MAILS) == (tokens,)
            assert fetch(db, "SELECT sum(taken)::integer FROM lifecycle.collections") == (tokens,)
    finally:
        done.set()
        system.clean()


def test_a_bad_account_does_not_stop_others(
    accounts: psycopg.Connection, system: System, tmp_path: Path
) -> None:
    accounts.execute(
        "INSERT INTO accounts (email, login) VALUES ('no mailbox', 'x'),"
        " ('+491701234567', 'telephone'), ('c@b.example', E'Subject: y\\n\\nbody'),"
        " ('d@b.example', 'd')"
    )
    daemon = system.queued(**settings(tmp_path), **held(system))
    daemon.wait_log("no mail", count=3)
    reasons = [event["reason"] for event in daemon.events("no mail")]
    assert reasons.count("its account has no usable mailbox") == 2
    assert "the word login: a word of a header field: it has a line end" in str(reasons)
    until(lambda: column(accounts, "SELECT recipient FROM pgmta.queue") == ["d@b.example"])
    assert fetch(accounts, "SELECT taken, refused FROM collections") == (1, 3)


def test_a_row_that_the_database_refuses_is_set_aside(
    accounts: psycopg.Connection, system: System, tmp_path: Path
) -> None:
    accounts.execute(
        "CREATE FUNCTION pgmta.no() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN RAISE EXCEPTION ''no''; END';"
        " CREATE TRIGGER no BEFORE INSERT ON pgmta.queue FOR EACH ROW"
        " WHEN (NEW.recipient = 'u3@b.example') EXECUTE FUNCTION pgmta.no()"
    )
    add_accounts(accounts, 5)
    daemon = system.queued(**settings(tmp_path), **held(system))
    system.expected.add("set aside")
    assert daemon.wait_log("set aside")["reason"] == "no"
    until(lambda: fetch(accounts, MAILS) == (4,))


@pytest.mark.slow
def test_a_bad_template_lets_the_tokens_of_its_action_wait(
    accounts: psycopg.Connection, database: str, system: System, tmp_path: Path
) -> None:
    """Also for a collector whose budget allows few at once, and for queued that starts then."""
    bad = TemplateSource(sender="a@b.example", from_="a@b.example", subject="x", body="no way")
    good = TemplateSource(sender="a@b.example", from_="a@b.example", subject="x", body="{{link}}")
    put_template(accounts, "activation", bad)
    config = settings(tmp_path, budget={"rate": 1000.0}, limit=100)
    daemon = system.queued(**config, **held(system))
    assert "neither {{link}} nor" in daemon.wait_log("configuration")["reason"]
    daemon.wait_log("connected")
    add_accounts(accounts, 50)
    assert "neither {{link}} nor" in daemon.wait_log("tokens wait")["reason"]
    operator = acting(database, "pgmta_operator")
    (found, *_) = diagnosed(operator, lambda examination: AccountChecks(examination).accounts())
    assert found.finding == (
        '50 tokens of activation wait: the template "activation" has neither {{link}} nor {{token}}'
    )
    accounts.execute(END_COLLECTORS)
    daemon.wait_log("connected", count=2)
    add_accounts(accounts, 1, "lost", status="active")
    accounts.execute("SELECT recover('lost1')")
    until(lambda: column(accounts, "SELECT recipient FROM pgmta.queue") == ["lost1@b.example"])
    put_template(accounts, "activation", good)
    until(lambda: fetch(accounts, MAILS) == (51,))
    assert len(daemon.events("tokens wait")) == 1  # not for each batch


def test_an_action_that_somebody_deleted_stops_no_mail(
    accounts: psycopg.Connection, system: System, tmp_path: Path
) -> None:
    accounts.execute("DELETE FROM actions WHERE name = 'password_recovery'")
    config = settings(tmp_path, actions=["activation", "password_recovery"])
    daemon = system.queued(**config, **held(system))
    assert 'no action "password_recovery"' in daemon.wait_log("configuration")["reason"]
    add_accounts(accounts, 1)
    until(lambda: fetch(accounts, MAILS) == (1,))


# -- money --


def test_the_price_sets_the_pace() -> None:
    budget = CollectorBudget(price=0.10, sum=100.0)
    assert budget.month_most == 1_000_000
    assert 0.37 < budget.pace < 0.38
    assert 10 / budget.pace >= 26.3
    assert CollectorBudget(rate=0.1, price=0.10, sum=100.0).pace == 0.1


@pytest.mark.slow
def test_killed_collectors_keep_a_rate(
    accounts: psycopg.Connection, system: System, tmp_path: Path
) -> None:
    """No second has more than the rate, while three collectors share it and are killed."""
    config = settings(tmp_path, timeout=None, budget={"key": "shared", "rate": 100.0})
    add_accounts(accounts, 1000)
    daemons = [system.queued(ready=False, **config, **held(system)) for _ in range(3)]
    for number in range(1, 7):
        until(partial(lambda least: fetch(accounts, MAILS) >= (least,), 100 * number), timeout=60)
        match number % 3:
            case 0:
                accounts.execute(END_COLLECTORS)
            case _:
                daemons[number % 2].kill()
                daemons[number % 2].start()
    until(lambda: fetch(accounts, MAILS) == (1000,), timeout=60)
    assert fetch(accounts, ONE_EACH) == (1000, 1000, 1000, 0)
    query = "SELECT extract(epoch FROM collected_at)::float8 FROM tokens ORDER BY 1"
    times = column(accounts, query)
    assert max(bisect_left(times, at + 1) - n for n, at in enumerate(times)) <= 100
    assert {taken for taken, _, _ in batches(accounts)} == {2}


def test_a_slow_budget_spaces_single_tokens(
    accounts: psycopg.Connection, system: System, tmp_path: Path
) -> None:
    """Tokens that expired before go at once, and take none of it."""
    accounts.execute("SELECT pgmta.budget_set('slow', 5)")
    add_accounts(accounts, 500)
    accounts.execute("UPDATE tokens SET expires_at = created_at WHERE id <= 490")
    system.queued(
        **settings(tmp_path, limit=1000, timeout=None, budget={"key": "slow", "rate": 5.0}),
        **held(system),
    )
    until(lambda: fetch(accounts, MAILS) == (10,), timeout=30)
    query = "SELECT extract(epoch FROM collected_at)::float8 FROM tokens WHERE message_id > 0"
    times = sorted(column(accounts, query))
    assert max(bisect_left(times, at + 1) - n for n, at in enumerate(times)) <= 5
    assert fetch(accounts, "SELECT max(expired) FROM collections") == (490,)


def test_tokens_that_get_no_mail_take_none_of_a_slow_budget(accounts: psycopg.Connection) -> None:
    """Nor the time of others: they rest together."""
    accounts.execute("SELECT pgmta.budget_set('slow', 0.1)")
    accounts.execute("UPDATE actions SET priority = 5 WHERE name = 'password_recovery'")
    add_accounts(accounts, 50)
    lacks = "{{link}} {{firstname}}"
    bad = TemplateSource(sender="a@b.example", from_="a@b.example", subject="x", body=lacks)
    put_template(accounts, "activation", bad)
    add_accounts(accounts, 1, "lost", status="active")
    accounts.execute("SELECT recover('lost1')")
    assert collect(accounts, 100, budget="slow")[0] == 1
    assert fetch(accounts, "SELECT count(fault) FROM waiting_tokens") == (50,)


def test_the_month_ends_the_mail(accounts: psycopg.Connection) -> None:
    accounts.execute("SELECT pgmta.budget_set('m', 100000, 15)")
    add_accounts(accounts, 20)
    assert [collect(accounts, budget="m")[0] for _ in range(3)] == [10, 5, 0]
    assert (collect(accounts, budget="m")[2] or 0) > 0
    assert fetch(accounts, ONE_EACH) == (15, 15, 20, 5)


def test_tokens_without_mail_are_told_everywhere(
    accounts: psycopg.Connection, database: str, system: System, tmp_path: Path
) -> None:
    """One gets mail; one is expired, one has no mailbox, and the sum does not reach for one."""
    accounts.execute(
        "INSERT INTO accounts (email, login) VALUES ('no mailbox', 'x');"
        " INSERT INTO accounts (email, login) SELECT n || '@b.example', n FROM"
        " generate_series(1, 3) AS n; UPDATE tokens SET expires_at = epoch() WHERE account = 2"
    )
    port = free_port()
    budget = {"key": "one", "rate": 1000.0, "price": 1000.0, "sum": 1.0}
    daemon = system.queued(
        **settings(tmp_path, budget=budget), **held(system),
        metrics={"listen": f"127.0.0.1:{port}"},
    )  # fmt: skip
    told = daemon.wait_log("the sum of the month is used up")
    assert told["budget"] == "one"
    assert told["hours"] <= 31 * 24
    assert daemon.wait_log("tokens expired before their mail was made")["tokens"] == 1
    daemon.wait_log("no mail")
    sums = "SELECT sum(taken)::integer, sum(refused)::integer, sum(expired)::integer"
    assert fetch(accounts, f"{sums} FROM collections") == (1, 1, 1)
    assert collect(accounts, budget="one")[0] == 0  # noted once per hour
    assert fetch(accounts, "SELECT count(*) FROM collections WHERE reason = 'sum'") == (1,)
    page = Scrape.of(port)
    name = "pgmta_queued_collector_tokens_total"
    for outcome in ("collected", "refused", "expired"):
        assert page.value(name, collector="c", outcome=outcome) == 1
    assert page.value("pgmta_queued_collector_sum_used_up", collector="c") == 1
    assert page.value("pgmta_queued_collector_batch_size", collector="c") >= 1
    assert page.value("pgmta_queued_collector_timeout_seconds", collector="c") > 1

    accounts.execute("UPDATE tokens SET created_at = created_at - 300")
    operator = acting(database, "pgmta_operator")
    accounts_of = diagnosed(operator, lambda examination: AccountChecks(examination).accounts())
    found = [each.finding for each in accounts_of]
    for number, words in enumerate(
        ("budget one is used up", "1 tokens of activation have no mail yet",
         "1 tokens of activation expired within a day", "1 tokens of the last day can have no mail")
    ):  # fmt: skip
        assert words in found[number]

    accounts.execute("UPDATE tokens SET expires_at = epoch()")
    collect(accounts, budget="one")  # which can't wait for the next month
    assert fetch(accounts, f"{sums} FROM collections") == (1, 1, 2)
    assert fetch(accounts, "SELECT count(*) FROM waiting_tokens") == (0,)


# -- plans --


def blocks_of_a_token(database: str) -> float:
    """The blocks that a batch of 50 reads, for each of its tokens; 25 were measured."""
    options = "-c plan_cache_mode=force_generic_plan"
    with psycopg.connect(make_conninfo(database, options=options), autocommit=True) as db:
        for _ in range(2):  # what a session reads once
            collect(db, 50)
        ((plan,),) = db.execute(
            "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON)"
            " SELECT * FROM lifecycle.collect('c', 'w', 50, 'limit', %s)",
            (json.dumps({"actions": ACTIONS}),),
        ).fetchall()
    root = plan[0]["Plan"]
    return float(root["Shared Hit Blocks"] + root["Shared Read Blocks"]) / 50


@pytest.mark.slow
def test_few_blocks_are_read_beside_many_collected(
    accounts: psycopg.Connection, database: str
) -> None:
    with accounts.transaction():
        accounts.execute("SET LOCAL session_replication_role = replica")
        accounts.execute(
            "INSERT INTO tokens (action, account, expires_at, collected_at, message_id)"
            " SELECT 'activation', n, epoch() + 900, now(), n FROM generate_series(1, 1000000) AS n"
        )
    accounts.execute("VACUUM ANALYZE tokens")
    add_accounts(accounts, 200)
    assert blocks_of_a_token(database) <= 30


def test_a_batch_does_not_read_all_that_waits(accounts: psycopg.Connection, database: str) -> None:
    """Nor all tokens, in the order of their ids: a plan of analyzed tables, each token waiting."""
    add_accounts(accounts, 5000)
    accounts.execute("VACUUM ANALYZE tokens, waiting_tokens, accounts")
    assert blocks_of_a_token(database) <= 30


def test_a_collector_of_few_actions_reads_only_their_tokens(accounts: psycopg.Connection) -> None:
    open_shop(accounts)
    add_accounts(accounts, 5000)
    accounts.execute("VACUUM ANALYZE tokens, waiting_tokens, accounts")
    accounts.execute("SELECT ask('deletion', '1')")
    for call in ("tokens_waiting('{deletion}', 500)", "tokens_pick('{deletion}', 500)"):
        accounts.execute(f"SELECT cardinality({call})".encode())  # what a session reads once
        (plan,) = fetch(
            accounts, f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT cardinality({call})"
        )
        assert plan[0]["Plan"]["Shared Hit Blocks"] < 50, call


def test_actions_of_one_priority_take_turns(accounts: psycopg.Connection) -> None:
    open_shop(accounts)
    accounts.execute("UPDATE actions SET priority = 4 WHERE name = 'deletion'")
    add_accounts(accounts, 3)
    accounts.execute("SELECT ask('deletion', '1')")
    add_accounts(accounts, 3, "later")
    for _ in range(4):
        collect(accounts, 2)
    order = "SELECT action::text FROM tokens ORDER BY message_id"
    assert column(accounts, order) == [*["activation"] * 4, "deletion", *["activation"] * 2]
