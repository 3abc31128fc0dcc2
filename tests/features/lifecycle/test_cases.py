"""Each status, action, expiry and consumption against a model, and each defect of mailroom."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import NamedTuple

import psycopg
import pytest
from psycopg import errors as pg_errors

from tests.features.lifecycle.tokens import add_accounts, collect
from tests.support.rows import column, fetch

STATUSES = ("provisioned", "active", "suspended", "deleted")
ACTIONS = ("activation", "password_recovery")
CASES = list(itertools.product(STATUSES, ACTIONS, (False, True), (False, True, "just now")))
"""Status of the account, action, whether it is expired, and whether it was consumed."""


class Effect(NamedTuple):
    """The outcome of an attempt to consume a token."""

    consumed: bool
    status: str | None


def model(status: str, action: str, expired: bool, consumed: object) -> Effect:
    """The effect that an attempt must have."""
    if status == "deleted":
        return Effect(False, None)
    fits = {"activation": "provisioned", "password_recovery": "active"}[action] == status
    done = fits and not expired and not consumed
    return Effect(done, "active" if done else status)


def prepare(
    db: psycopg.Connection, status: str, action: str, expired: bool, consumed: object
) -> bytes:
    """A token in that state; its secret."""
    db.execute("DELETE FROM accounts")
    (account,) = fetch(
        db, "INSERT INTO accounts (email, login) VALUES ('u@b.example', 'u') RETURNING id"
    )
    db.execute("DELETE FROM tokens")
    (secret,) = fetch(
        db, "INSERT INTO tokens (action, account) VALUES (%s, %s) RETURNING secret",
        action, account,
    )  # fmt: skip
    with db.transaction():  # as an owner may, past the triggers
        db.execute("SET LOCAL session_replication_role = replica")
        if status != "deleted":
            db.execute("UPDATE accounts SET status = %s", (status,))
        if expired:
            db.execute("UPDATE tokens SET expires_at = epoch() - 1")
        if consumed:
            age = 0 if consumed == "just now" else 60
            db.execute("UPDATE tokens SET consumed_at = epoch() - %s", (age,))
    if status == "deleted":
        db.execute("DELETE FROM accounts")
    return bytes(secret)


def state(db: psycopg.Connection, before: int | None) -> Effect:
    """Return the outcome for the token."""
    found = db.execute(
        "SELECT consumed_at, status::text FROM accounts LEFT JOIN tokens ON account = accounts.id"
    ).fetchone()
    if found is None:
        return Effect(False, None)
    return Effect(found[0] is not None and before is None, found[1])


def consumed_at(db: psycopg.Connection) -> int | None:
    found = db.execute("SELECT consumed_at FROM tokens").fetchone()
    return found[0] if found else None


@pytest.mark.parametrize("way", ["update", "function"])
def test_each_case(accounts: psycopg.Connection, way: str) -> None:
    assert len(CASES) == 48
    for case in CASES:
        secret = prepare(accounts, *case)
        before = consumed_at(accounts)
        wanted = model(*case)
        if way == "update":
            accounts.execute("UPDATE tokens SET consumed_at = epoch() WHERE secret = %s", (secret,))
        else:
            why, proof = fetch(
                accounts, "SELECT why, proof FROM token_consume(%s, %s)", secret, case[1]
            )
            assert (why is None) == wanted.consumed, case
            recovered = wanted.consumed and case[1] == "password_recovery"
            assert (proof is not None) == recovered, case
        assert state(accounts, before) == wanted, case


# -- defects of mailroom, which had such a schema before --


def test_codes_are_five_digits_of_which_each_is_as_likely(accounts: psycopg.Connection) -> None:
    codes = column(accounts, "SELECT token_code() FROM generate_series(1, 100000)")
    assert all(len(code) == 5 and code.isdigit() for code in codes)
    first = Counter(code[0] for code in codes)
    assert sum((n - 10_000) ** 2 / 10_000 for n in first.values()) < 40, first
    assert len(first) == 10


def test_an_account_that_on_conflict_leaves_out_makes_no_token(
    accounts: psycopg.Connection,
) -> None:
    add_accounts(accounts, 1)
    accounts.execute(
        "INSERT INTO accounts (email, login) VALUES ('u1@b.example', 'x'), ('v@b.example', 'v')"
        " ON CONFLICT DO NOTHING"
    )
    assert fetch(accounts, "SELECT count(*) FROM tokens") == (2,)


def test_an_account_that_was_never_activated_gets_a_token_when_its_suspension_ends(
    accounts: psycopg.Connection,
) -> None:
    accounts.execute(
        "INSERT INTO accounts (email, login, status) VALUES ('u@b.example', 'u', 'active')"
    )
    accounts.execute("UPDATE accounts SET status = 'suspended'")
    accounts.execute("UPDATE accounts SET status = 'active'")
    assert fetch(accounts, "SELECT status::text FROM accounts") == ("provisioned",)
    assert fetch(accounts, "SELECT count(*) FROM tokens WHERE action = 'activation'") == (1,)


def test_a_token_whose_account_did_not_fit_for_a_while_is_mailed_when_it_fits(
    accounts: psycopg.Connection,
) -> None:
    add_accounts(accounts, 1, "early")
    accounts.execute("UPDATE accounts SET status = 'suspended'")
    add_accounts(accounts, 1, "late")
    assert collect(accounts)[0] == 1
    accounts.execute("UPDATE accounts SET status = 'active' WHERE login LIKE 'early%'")
    assert collect(accounts)[0] == 1


def test_a_recovery_without_a_code_is_an_error(accounts: psycopg.Connection) -> None:
    add_accounts(accounts, 1, status="active")
    with pytest.raises(pg_errors.CheckViolation):
        accounts.execute(
            "INSERT INTO tokens (action, account, code) SELECT 'password_recovery', id, NULL"
            " FROM accounts"
        )


def test_a_token_whose_commit_comes_late_is_not_passed_over(accounts: psycopg.Connection) -> None:
    with psycopg.connect(accounts.info.dsn) as late:
        add_accounts(late, 1, "late")
        add_accounts(accounts, 1, "early")
        assert collect(accounts)[0] == 1
        late.commit()
    assert collect(accounts)[0] == 1


def test_two_collectors_at_once_take_different_tokens(accounts: psycopg.Connection) -> None:
    add_accounts(accounts, 4)
    with psycopg.connect(accounts.info.dsn) as other:
        assert collect(other, 2)[0] == 2
        accounts.execute("SET statement_timeout = '2s'")  # one that waits for the other
        assert collect(accounts, 10)[0] == 2
        other.commit()
    assert fetch(accounts, "SELECT count(DISTINCT recipient), count(*) FROM pgmta.queue") == (4, 4)


def test_a_token_is_marked_with_its_mail_or_not_at_all(accounts: psycopg.Connection) -> None:
    add_accounts(accounts, 2)
    accounts.execute(
        "CREATE FUNCTION pgmta.no() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN RAISE EXCEPTION ''no''; END';"
        " CREATE TRIGGER no BEFORE INSERT ON pgmta.queue FOR EACH ROW EXECUTE FUNCTION pgmta.no()"
    )
    with pytest.raises(pg_errors.RaiseException):
        collect(accounts)
    accounts.execute("DROP TRIGGER no ON pgmta.queue")
    assert collect(accounts)[0] == 2


# -- what else the triggers do --


LAST_EVENT = """
SELECT event, reply FROM pgmta.attempts ORDER BY ended_at DESC, message_id DESC LIMIT 1
"""


def test_withdrawn(accounts: psycopg.Connection) -> None:
    for change, reason in [
        ("UPDATE accounts SET status = 'suspended'", "its account is suspended"),
        ("UPDATE accounts SET status = 'active'", "its account is active"),
        ("UPDATE tokens SET consumed_at = epoch()", "its token was consumed"),
        ("DELETE FROM tokens", "its token was deleted"),
        ("DELETE FROM accounts", "its token was deleted"),
    ]:
        accounts.execute("DELETE FROM accounts")
        add_accounts(accounts, 1)
        assert collect(accounts)[0] == 1
        assert fetch(accounts, "SELECT count(*) FROM pgmta.queue") == (1,)
        accounts.execute(change.encode())
        assert fetch(accounts, "SELECT count(*) FROM pgmta.queue") == (0,), change
        logged = fetch(accounts, LAST_EVENT)
        assert logged == ("cancelled", reason)


def test_rolled_back_together(accounts: psycopg.Connection) -> None:
    add_accounts(accounts, 1)
    collect(accounts)
    with accounts.transaction(force_rollback=True):
        accounts.execute("DELETE FROM accounts")
        assert fetch(accounts, "SELECT count(*) FROM pgmta.queue") == (0,)
    assert fetch(accounts, "SELECT count(*) FROM pgmta.queue") == (1,)


def test_five_wrong_codes_lock(accounts: psycopg.Connection) -> None:
    add_accounts(accounts, 1, status="active")
    accounts.execute("SELECT recover('u1')")
    (secret,) = fetch(accounts, "SELECT secret FROM tokens")
    failed = [fetch(accounts, "SELECT token_failed(%s)", secret)[0] for _ in range(6)]
    assert failed == [True] * 5 + [False]
    consume = "SELECT why FROM token_consume(%s, 'password_recovery')"
    assert fetch(accounts, consume, secret) == ("locked",)
    assert fetch(accounts, "SELECT token_failed(%s)", bytes(32)) == (False,)
    # a locked link is no reason to wait for another one
    for _ in range(2):
        accounts.execute("SELECT recover('u1')")
    assert column(accounts, "SELECT failures FROM tokens ORDER BY id") == [5, 0]
    # nothing is typed in beside a link without a code
    add_accounts(accounts, 1, "new")
    (secret,) = fetch(accounts, "UPDATE tokens SET failures = 5 WHERE account = 2 RETURNING secret")
    assert fetch(accounts, "SELECT why FROM token_consume(%s, 'activation')", secret) == (None,)


def test_a_recovery_is_asked_for_once_a_minute_and_says_nothing(
    accounts: psycopg.Connection,
) -> None:
    add_accounts(accounts, 2, status="active")
    accounts.execute("UPDATE accounts SET status = 'suspended' WHERE login = 'u2'")
    for name in ("u1", "u1@b.example", "u1", "u2", "nobody", None):
        assert fetch(accounts, "SELECT recover(%s)::text", name) == ("",)
    assert column(accounts, "SELECT account FROM tokens") == [1]


def test_a_recovery_finds_its_account_by_the_mailbox_in_any_spelling(
    accounts: psycopg.Connection,
) -> None:
    accounts.execute(
        "INSERT INTO accounts (email, login, status) VALUES ('Cap@B.example', 'Cap', 'active'),"
        " ('cup@b.example', 'cup', 'active')"
    )
    for name in ("cap@b.EXAMPLE", '"cap"@b.example', "cap", "cap@b.example.org"):
        accounts.execute("SELECT recover(%s)", (name,))
    assert column(accounts, "SELECT account FROM tokens") == [1]
    assert collect(accounts)[0] == 1  # to the mailbox as the account has it
    assert column(accounts, "SELECT recipient FROM pgmta.queue") == ["Cap@B.example"]


def test_an_activation_is_asked_for_once_a_minute(accounts: psycopg.Connection) -> None:
    add_accounts(accounts, 1)
    for _ in range(30):
        accounts.execute("SELECT activate_again('1')")
    assert fetch(accounts, "SELECT count(*) FROM tokens") == (1,)
    accounts.execute("UPDATE tokens SET created_at = created_at - 60")
    for _ in range(2):
        accounts.execute("SELECT activate_again('1')")
    assert fetch(accounts, "SELECT count(*) FROM tokens") == (2,)
    # the clock was set back by an hour: that is no hour of silence
    accounts.execute(
        "UPDATE tokens SET created_at = created_at + 3600, expires_at = expires_at + 3600"
    )
    for _ in range(2):
        accounts.execute("SELECT activate_again('1')")
    assert fetch(accounts, "SELECT count(*) FROM tokens") == (3,)


def test_a_used_recovery_ends_the_others(accounts: psycopg.Connection) -> None:
    add_accounts(accounts, 2, status="active")
    for _ in range(3):
        accounts.execute("SELECT recover('u1'), recover('u2')")
        accounts.execute("UPDATE tokens SET created_at = created_at - 60")
        collect(accounts, 2)
    consume = "SELECT proof, why FROM token_consume(%s, 'password_recovery')"
    first, used, last = column(accounts, "SELECT secret FROM tokens WHERE account = 1 ORDER BY id")
    assert fetch(accounts, consume, used)[1] is None
    assert fetch(accounts, consume, first) == (None, "expired")
    assert fetch(accounts, consume, last) == (None, "expired")
    queued = "SELECT recipient FROM pgmta.queue ORDER BY id"
    assert column(accounts, queued) == ["u2@b.example"] * 3
    accounts.execute("SELECT recover('u1')")  # at once
    (secret,) = fetch(accounts, "SELECT secret FROM tokens ORDER BY id DESC LIMIT 1")
    assert fetch(accounts, consume, secret)[1] is None


def test_a_proof_is_taken_once(accounts: psycopg.Connection) -> None:
    add_accounts(accounts, 1, status="active")
    accounts.execute("SELECT recover('u1')")
    (proof,) = fetch(
        accounts, "SELECT proof FROM tokens, token_consume(secret, 'password_recovery')"
    )
    assert column(accounts, "SELECT hash FROM proofs") != [proof.encode()]
    take = "SELECT login, action FROM proof_take(%s)"
    assert column(accounts, take, "x") == []
    assert fetch(accounts, take, proof) == ("u1", "password_recovery")
    assert column(accounts, take, proof) == []
    accounts.execute("INSERT INTO proofs (hash, account, action) VALUES ('x', 1, 'x')")
    accounts.execute("DELETE FROM accounts")  # its id may be used again
    assert column(accounts, "SELECT hash FROM proofs") == []


def test_a_token_that_is_printed_again_keeps_its_first_time(accounts: psycopg.Connection) -> None:
    """From which its expiry may count."""
    add_accounts(accounts, 1)
    printed = "SELECT tokens_printed('{1}', 'c', 'w', 'limit', 1, 0, 0, now())"
    at = "SELECT collected_at FROM tokens"
    accounts.execute(printed)
    first = fetch(accounts, at)
    accounts.execute(printed)
    assert fetch(accounts, at) == first != (None,)


def test_truncate_is_refused(accounts: psycopg.Connection) -> None:
    for table in ("tokens", "accounts CASCADE"):
        with pytest.raises(pg_errors.ObjectNotInPrerequisiteState, match="mail about tokens"):
            accounts.execute(f"TRUNCATE {table}".encode())


def test_rights(accounts: psycopg.Connection) -> None:
    add_accounts(accounts, 1, status="active")
    for role, statements in {
        "pgmta_web": ["SELECT token_consume('x', 'activation')", "SELECT token_failed('x')"],
        "pgmta_submit": ["SELECT recover('u1')", "SELECT proof_take('x')"],
        "pgmta_queued": ["SELECT tokens_waiting('{activation}', 1)"],
        "pgmta_reader": ["SELECT id, account FROM tokens", "TABLE collections"],
    }.items():
        accounts.execute(f"SET ROLE {role}".encode())
        for statement in statements:
            accounts.execute(statement.encode())
        for statement in ("SELECT secret FROM tokens", "TABLE accounts", "TABLE proofs"):
            with pytest.raises(pg_errors.InsufficientPrivilege):
                accounts.execute(statement.encode())
        accounts.execute("RESET ROLE")
