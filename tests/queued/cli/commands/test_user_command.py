"""`queuectl user`: what it stores, what it shows, and what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import Result

from pgmta.accounts.throttle import Notes, Throttle
from pgmta.config.authentication import Failures
from pgmta.password import ITERATIONS, matches, parse_scram_keys
from pgmta.postgres.link import Link
from pgmta.store.accounts.logins import LoginStore, name_key
from queued.cli.options import user_options
from tests.support.queuectl import queuectl


def run(config: Path, words: str, password: str = "") -> Result:
    command, *rest = words.split()
    return queuectl(config, "user", command, *rest, given=password)


def test_a_user_from_the_first_day_to_the_last(
    config: Path, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def row(columns: str) -> Any:
        return (db.execute(f"SELECT {columns} FROM users".encode()).fetchone() or (None,))[0]

    blind = run(config, "add Ann@A.Example", "first one\nfirst one\n")
    reason = "error: no terminal to ask for the password: give --stdin or --generate\n"
    assert (blind.exit_code, blind.stderr) == (2, reason)
    monkeypatch.setattr(user_options, "_terminal", lambda: True)
    assert run(config, "add Ann@A.Example", "first one\nfirst one\n").exit_code == 0
    assert row("(name, senders)::text") == "(ann@a.example,{ann@a.example})"
    assert matches(row("password"), b"first one")
    assert parse_scram_keys(row("scram"))[3] == ITERATIONS
    again = run(config, "add ann@a.example --generate")
    assert again.stdout == ""  # no password that is in use nowhere
    assert (again.exit_code, again.stderr) == (1, "error: there is a user ann@a.example already\n")

    made = run(config, "passwd ann@a.example --generate --no-scram").stdout
    assert matches(row("password"), made.split()[-1].encode())
    assert row("scram") is None
    rights = "--sender @B.Example --network 192.0.2.0/24 --tenant t --metadata k=v --priorities 0-9"
    assert run(config, f"set ann@a.example {rights}").exit_code == 0
    assert row("(senders, networks, tenant, metadata, priority_first, priority_last)::text") == (
        '({@b.example},{192.0.2.0/24},t,"{""k"": ""v""}",0,9)'
    )
    assert run(config, "set ann@a.example --any-sender --any-network").exit_code == 0
    assert row("(senders, networks)::text") == "({any},)"
    assert row("tenant") == "t"

    assert run(config, "disable ann@a.example").exit_code == 0
    (listed,) = json.loads(run(config, "list --json").stdout)
    assert listed["disabled"]
    assert "password" not in listed
    assert "disabled" in run(config, "list").stdout
    assert run(config, "enable ann@a.example").exit_code == 0
    db.execute("SELECT login_seen('{ann@a.example}', '{192.0.2.0/24}')")
    shown = run(config, "show ann@a.example").stdout
    assert "logged in from 192.0.2.0/24" in shown
    assert "argon2" not in shown + run(config, "show ann@a.example --json").stdout
    assert "no failed logins" in run(config, "unlock ann@a.example").stdout
    assert run(config, "delete ann@a.example").exit_code == 0
    assert run(config, "list").exit_code == 1
    actions = [action for (action,) in db.execute("SELECT action FROM audit ORDER BY id")]
    assert actions == [
        f"user {word}"
        for word in ["add", "password", "set", "set", "disable", "disable", "unlock", "delete"]
    ]  # fmt: skip


async def test_who_is_locked_until_when_and_by_which_failures(
    config: Path, database: str, db: psycopg.Connection
) -> None:
    """As smtpd counts: 4 failures of a user and 5 from an own network in ten minutes lock."""
    assert run(config, "add ann@a.example --generate").exit_code == 0
    assert run(config, "set ann@a.example --metadata k=v --tenant t").exit_code == 0
    link = Link(database, "test")
    store, limits = LoginStore(link), Failures(user=4, address=5)
    notes = Notes(store, throttle := Throttle(limits))
    _, secret = await store.changes()
    user, own = (f"user {name_key(secret, name)}" for name in ("ann@a.example", "nobody"))
    here = f"own {user.split()[1]} 192.0.2.0/24"

    def states() -> dict[tuple[str, str | None], bool]:
        found = json.loads(run(config, "failures --json").stdout)
        return {
            (each["unit"].split()[0], each["name"]): each["locked_until"] is not None
            for each in found
        }

    for number in range(5):
        for unit in (user, here, own, *(["address 192.0.2.7"] if number else [])):
            notes.add_failure(unit)
        await notes.write_due()
        shown = run(config, "show ann@a.example").stdout
        for unit, place in ((user, "elsewhere"), (here, "192.0.2.0/24")):
            (line,) = [each for each in shown.splitlines() if f"failed logins from {place}" in each]
            assert ("locked until" in line) is throttle.blocked([unit])
    assert throttle.blocked([user])
    assert throttle.blocked([here])
    assert states() == {
        ("user", "ann@a.example"): True, ("user", None): True,
        ("own", "ann@a.example"): True, ("address", "192.0.2.7"): False,
    }  # fmt: skip
    table = run(config, "failures").stdout
    assert re.search(r"user +ann@a.example +192.0.2.0/24 +5 ", table)
    assert "(no user)" in table
    assert (
        run(config, "unlock ann@a.example").stdout == "failed logins of ann@a.example forgotten\n"
    )
    assert "locked" not in run(config, "show ann@a.example").stdout
    assert states() == {("user", None): True, ("address", "192.0.2.7"): False}
    assert run(config, "set ann@a.example --no-metadata").exit_code == 0
    assert db.execute("SELECT metadata, tenant FROM users").fetchall() == [({}, "t")]
    await notes.close()
    await link.close()


def test_refusals(config: Path) -> None:
    for words, problem in (
        ("add ann --stdin", "ann is no address: give --sender or --any-sender"),
        ("add a --any-sender --stdin --generate", "--stdin and --generate exclude each other"),
        ("add a --any-sender --sender b@c --stdin", "--sender and --any-sender exclude each other"),
        ("add a --sender b --stdin", "--sender 'b': expected an address or @domain: no domain"),
        ("add a@b --network 1.2.3.4/8 --stdin", "host bits set; did you mean 1.0.0.0/8?"),
        ("add a@b --priorities 7-3 --stdin", "--priorities '7-3': expected for example 3-7"),
        ("add a@b --metadata x --stdin", "--metadata 'x': expected key=value"),
        ("add a@b --metadata _exempt=ceo --stdin", "--metadata _exempt: it is a key that pgmta"),
        ("add a@b --tenant acme/eu --stdin", "--tenant 'acme/eu': expected up to 64 letters"),
        ("set a@b --tenant *", "--tenant '*': expected up to 64 letters"),
        ("add a@b --stdin", "a password needs 8 characters, at most 1024"),
        ("set a@b --metadata k=v --no-metadata", "--metadata and --no-metadata exclude each other"),
        ("set a@b", "nothing to change: give at least one option"),
        ("set a@b --tenant x", "error: there is no user a@b; `queuectl user list` lists them"),
        ("passwd a@b --generate", "error: there is no user a@b"),
        ("unlock a@b", "error: there is no user a@b"),
        ("add key:shop --any-sender --stdin", "a login name does not begin with key:"),
        (f"disable {'a' * 256}", "a login name has 1 to 255 characters"),
    ):
        result = run(config, words, "short\n")
        assert result.exit_code in (1, 2)
        assert problem in result.stderr
        assert "short" not in result.stderr
