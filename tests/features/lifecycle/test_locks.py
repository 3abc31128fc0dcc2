"""Tokens and accounts that other sessions have locked."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from tests.features.lifecycle.test_collector import MAILS, held
from tests.features.lifecycle.tokens import add_accounts, settings
from tests.support.rows import column, fetch
from tests.support.system import System
from tests.support.waiting import until

AGAIN = "SELECT lifecycle.mail_again()"
WAITS = "SELECT wait_event_type FROM pg_stat_activity WHERE pid = %s"


@pytest.mark.slow
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
        until(lambda: column(accounts, WAITS, second.info.backend_pid) == ["Lock"])
        first.commit()
        other.result()
    assert column(accounts, "SELECT account FROM tokens") == [1]


def test_two_calls_mail_a_token_again_once(accounts: psycopg.Connection, database: str) -> None:
    accounts.execute(
        "INSERT INTO actions (name, template, confirmed_by)"
        " VALUES ('invitation', 'activation', 'email');"
        "SELECT ask('invitation', email => 'eve@b.example', data => '{}');"
        "UPDATE tokens SET created_at = created_at - 3600, expires_at = epoch() - 60"
    )
    with (
        psycopg.connect(database) as first,
        psycopg.connect(database, autocommit=True) as second,
        ThreadPoolExecutor() as pool,
    ):
        assert fetch(first, AGAIN) == (1,)
        made = pool.submit(fetch, second, AGAIN)
        until(lambda: made.done() or column(accounts, WAITS, second.info.backend_pid) == ["Lock"])
        first.commit()
        assert made.result() == (0,)


def test_another_mailbox_waits_for_who_marks_its_token(
    accounts: psycopg.Connection, database: str
) -> None:
    add_accounts(accounts, 1)
    with (
        psycopg.connect(database) as printing,
        psycopg.connect(database, autocommit=True) as second,
        ThreadPoolExecutor() as pool,
    ):
        # tokens_printed() does this in one call
        printing.execute("UPDATE lifecycle.tokens SET collected_at = now()")
        changed = pool.submit(second.execute, "UPDATE lifecycle.accounts SET email = 'n@b.example'")
        until(lambda: column(accounts, WAITS, second.info.backend_pid) == ["Lock"])
        printing.execute("DELETE FROM lifecycle.waiting_tokens")
        printing.commit()
        changed.result()
    assert column(accounts, "SELECT token FROM waiting_tokens") == [2]


def test_an_account_that_is_deleted_meanwhile_gets_no_mail_again(
    accounts: psycopg.Connection, database: str
) -> None:
    add_accounts(accounts, 3)
    accounts.execute("UPDATE tokens SET created_at = created_at - 3600, expires_at = epoch() - 60")
    with (
        psycopg.connect(database) as first,
        psycopg.connect(database, autocommit=True) as second,
        ThreadPoolExecutor() as pool,
    ):
        first.execute("DELETE FROM lifecycle.accounts WHERE id = 2")
        made = pool.submit(fetch, second, AGAIN)
        until(lambda: column(accounts, WAITS, second.info.backend_pid) == ["Lock"])
        first.commit()
        assert made.result() == (2,)
    again = "SELECT account FROM tokens WHERE expires_at > epoch() ORDER BY id"
    assert column(accounts, again) == [1, 3]


@pytest.mark.slow
def test_mail_again_gives_up_an_account_that_stays_locked(
    accounts: psycopg.Connection, database: str
) -> None:
    """It holds the locks of the accounts before it."""
    add_accounts(accounts, 2)
    accounts.execute("UPDATE tokens SET created_at = created_at - 3600, expires_at = epoch() - 60")
    with psycopg.connect(database) as other:
        other.execute("SELECT FROM lifecycle.accounts WHERE id = 2 FOR UPDATE")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            accounts.execute(AGAIN)
    assert fetch(accounts, AGAIN) == (2,)


def test_nobody_says_that_a_code_is_right_while_wrong_ones_are_not_counted(
    accounts: psycopg.Connection, database: str
) -> None:
    add_accounts(accounts, 1, status="active")
    accounts.execute("SELECT recover('u1')")
    (secret,) = fetch(accounts, "SELECT secret FROM tokens")
    accounts.execute("SET lock_timeout = '50ms'")
    with psycopg.connect(database) as other:
        other.execute("LOCK lifecycle.tokens IN SHARE MODE")
        for function in ("token_failed", "token_locked"):
            with pytest.raises(psycopg.errors.LockNotAvailable):
                fetch(accounts, f"SELECT {function}(%s)", secret)
    assert fetch(accounts, "SELECT token_locked(%s)", secret) == (False,)
