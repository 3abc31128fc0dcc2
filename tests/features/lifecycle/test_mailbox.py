"""Links to a mailbox that is no longer that of the account."""

from __future__ import annotations

import psycopg

from tests.features.lifecycle.test_cases import LAST_EVENT
from tests.features.lifecycle.tokens import add_accounts, collect
from tests.support.rows import column, fetch

RECIPIENTS = "SELECT recipient FROM pgmta.queue ORDER BY id"
CONSUME = "SELECT why FROM token_consume(%s, 'activation')"
NEW = "new@b.example"


def test_a_changed_mailbox_ends_mailed_links(accounts: psycopg.Connection) -> None:
    add_accounts(accounts, 1)
    collect(accounts)
    (secret,) = fetch(accounts, "SELECT secret FROM tokens")
    accounts.execute("UPDATE accounts SET email = %s", [NEW])
    assert column(accounts, RECIPIENTS) == []
    assert fetch(accounts, LAST_EVENT) == ("cancelled", "its account has another mailbox")
    assert fetch(accounts, CONSUME, secret) == ("expired",)
    assert collect(accounts)[0] == 1
    assert column(accounts, RECIPIENTS) == [NEW]
    (again,) = fetch(accounts, "SELECT secret FROM tokens WHERE id = 2")
    assert fetch(accounts, CONSUME, again) == (None,)


def test_a_changed_mailbox_ends_tokens_that_wait(accounts: psycopg.Connection) -> None:
    """A collector that prints may have printed them."""
    add_accounts(accounts, 1)
    accounts.execute("UPDATE accounts SET email = %s", [NEW])
    assert column(accounts, "SELECT token FROM waiting_tokens") == [2]


def test_a_changed_mailbox_ends_recoveries(accounts: psycopg.Connection) -> None:
    add_accounts(accounts, 1, status="active")
    accounts.execute("SELECT recover('u1')")
    (secret,) = fetch(accounts, "SELECT secret FROM tokens")
    consume = "SELECT proof, why FROM token_consume(%s, 'password_recovery')"
    proof, why = fetch(accounts, consume, secret)
    assert why is None
    accounts.execute("SELECT recover('u1')")
    accounts.execute("UPDATE accounts SET email = %s", [NEW])
    assert column(accounts, "SELECT account FROM proof_take(%s)", proof) == []
    (secret,) = fetch(accounts, "SELECT secret FROM tokens WHERE id = 2")
    assert fetch(accounts, consume, secret) == (None, "expired")
    assert column(accounts, "SELECT token FROM waiting_tokens") == []


def test_the_same_mailbox_ends_nothing(accounts: psycopg.Connection) -> None:
    add_accounts(accounts, 1)
    accounts.execute("UPDATE accounts SET email = email, login = 'other'")
    assert column(accounts, "SELECT token FROM waiting_tokens") == [1]
