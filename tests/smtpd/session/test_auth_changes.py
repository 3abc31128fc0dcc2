"""AUTH while users change."""

from __future__ import annotations

import threading
import time

import psycopg
import pytest

from pgmta.accounts import users
from pgmta.accounts import users as known_users
from pgmta.password import matches
from pgmta.store.admin.user_accounts import Rights
from tests.smtpd.session.test_auth import GOOD, LATER, MAIL, NO_TRUST, WRONG
from tests.support.serving import Client, serving
from tests.support.users import accounts, add_user, log_in, plain, scram, secret


class Clock:
    """The clock by which smtpd asks whether users have changed."""

    ahead = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(known_users, "time", clock)
    return clock


@pytest.mark.slow
def test_changes_of_a_user_count_within_a_second(
    database: str, db: psycopg.Connection, clock: Clock
) -> None:
    add_user(database, "ann", "first one", any_sender=True)
    with accounts(database) as operator, serving(database, **NO_TRUST) as port:
        open_session = Client(port)
        open_session.hello()
        assert log_in(open_session, "ann", "first one").startswith(GOOD)
        assert open_session.say(MAIL).startswith("250")
        assert open_session.say("RSET").startswith("250")

        def tried(password: str) -> str:
            with Client(port).hello() as client:
                return log_in(client, "ann", password)

        assert tried("first one").startswith(GOOD)
        operator.passwd("ann", secret("second one"))
        clock.ahead += 0.6
        assert tried("first one").startswith(WRONG)
        assert tried("second one").startswith(GOOD)
        assert open_session.say(MAIL) == "421 4.7.0 mx.example The user was changed, log in again"
        operator.disable("ann", disabled=True)
        clock.ahead += 0.6
        assert tried("second one").startswith(WRONG)
        operator.disable("ann", disabled=False)
        operator.set("ann", Rights(tenant="other"))
        clock.ahead += 0.6
        assert tried("second one").startswith(GOOD)
        operator.delete("ann")
        clock.ahead += 0.6
        assert tried("second one").startswith(WRONG)
        open_session.socket.close()
    actions = db.execute("SELECT action, condition FROM audit ORDER BY id").fetchall()
    assert actions == [
        (f"user {action}", "ann")
        for action in ("add", "password", "disable", "disable", "set", "delete")
    ]
    assert "first one" not in str(db.execute("SELECT * FROM audit").fetchall())


def test_rows_that_no_program_of_ours_has_written_harm_their_user_alone(
    database: str, db: psycopg.Connection, clock: Clock
) -> None:
    add_user(database, "ann", "right one")
    add_user(database, "bob", "right one")
    with serving(database, **NO_TRUST) as port, Client(port).hello() as session:
        assert log_in(session, "ann", "right one").startswith(GOOD)
        for number, change in enumerate([
            "senders = '{NULL}'", "senders = '{{a@b.example},{b@b.example}}'",
            "networks = '{NULL}'", "networks = '{{10.0.0.0/8},{11.0.0.0/8}}'",
            "password = '$argon2id$v=19$m=1,t=1,p=1$YQ$YQ'", "password = '$argon2id$x'",
            "password = '$argon2id$v=19$m=4194304,t=99,p=1$' || split_part(password, '$', 5) || '$'"
            " || split_part(password, '$', 6)",
        ]):  # fmt: skip
            db.execute("UPDATE users SET senders = NULL, networks = NULL WHERE name = 'ann'")
            db.execute(f"UPDATE users SET {change} WHERE name = 'ann'")
            clock.ahead += 0.6
            with Client(port, f"127.0.5.{number + 1}").hello() as client:
                assert log_in(client, "ann", "right one")[:3] in ("454", "535"), change
            if not number:
                assert session.say(MAIL)[:3] in ("421", "451")
        db.execute("UPDATE users SET scram = 'SCRAM-SHA-256$9999:=$=:=' WHERE name = 'ann'")
        with Client(port, "127.0.5.99").hello() as client:
            assert scram(client, "ann", "right one").startswith(LATER)
            assert log_in(client, "bob", "right one").startswith(GOOD)


def test_a_password_that_is_checked_during_passwd(
    database: str, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    """A login after it does not take over the result for the old password."""
    add_user(database, "ann", "first one", any_sender=True)
    begun, checked = threading.Semaphore(0), threading.Event()

    def slow(known: str, password: bytes) -> bool:
        begun.release()
        assert checked.wait(60)
        return matches(known, password)

    monkeypatch.setattr(users, "matches", slow)
    command = f"AUTH PLAIN {plain('ann', 'first one')}\r\n".encode()
    with serving(database, **NO_TRUST) as port, Client(port) as before, Client(port) as after:
        for client in (before, after):
            client.hello()
        before.send(command)
        assert begun.acquire(timeout=60)
        with accounts(database) as operator:
            operator.passwd("ann", secret("second one"))
        clock.ahead += 0.6
        after.send(command)
        assert begun.acquire(timeout=60)
        checked.set()
        assert after.reply().startswith(WRONG)
        if before.reply().startswith(GOOD):
            assert before.say(MAIL).startswith("421 4.7.0")
