"""Tokens and accounts that other sessions have locked."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg

from tests.lifecycle.test_collector import MAILS, held
from tests.lifecycle.tokens import add_accounts, settings
from tests.support.rows import column, fetch
from tests.support.system import System
from tests.support.waiting import until


def test_tokens_that_others_have_locked_make_no_work(
    accounts: psycopg.Connection, database: str, system: System, tmp_path: Path
) -> None:
    add_accounts(accounts, 3)
    batches = "SELECT coalesce(sum(calls), 0)::integer FROM pg_stat_user_functions"
    count = f"{batches} WHERE funcname = 'collect'"
    with psycopg.connect(database) as other:
        other.execute("SELECT FROM lifecycle.tokens WHERE id <= 2 FOR UPDATE")
        accounts.execute(
            f"ALTER DATABASE {accounts.info.dbname} SET track_functions = 'pl'".encode()
        )
        daemon = system.queued(**settings(tmp_path), **held(system))
        daemon.wait_log("waits for tokens")
        (began,) = fetch(accounts, "SELECT clock_timestamp()")
        until(lambda: column(accounts, count)[0] > 5)
        (seconds,) = fetch(accounts, "SELECT extract(epoch FROM clock_timestamp() - %s)", began)
        assert seconds > 2
    until(lambda: fetch(accounts, MAILS) == (3,))


def test_of_clients_that_ask_together_one_gets_a_recovery(
    accounts: psycopg.Connection, database: str
) -> None:
    add_accounts(accounts, 1, status="active")
    with (
        psycopg.connect(database) as first,
        psycopg.connect(database, autocommit=True) as second,
        ThreadPoolExecutor() as pool,
    ):
        first.execute("SELECT lifecycle.recover('u1')")
        other = pool.submit(second.execute, "SELECT lifecycle.recover('u1')")
        waits = "SELECT wait_event_type FROM pg_stat_activity WHERE pid = %s"
        until(lambda: column(accounts, waits, second.info.backend_pid) == ["Lock"])
        first.commit()
        other.result()
    assert column(accounts, "SELECT account FROM tokens") == [1]
