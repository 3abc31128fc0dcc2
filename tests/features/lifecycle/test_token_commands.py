"""`queuectl token | collect`, and tokens that another program makes."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import random
import shlex
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner
from psycopg.types.json import Jsonb

from pgmta.command import EXIT_PIPE
from pgmta.compose.token import KeyRing, KeyRings, Purpose, TokenKey, secret_of
from queued.cli.queuectl import main
from tests.features.lifecycle.shop import open_shop
from tests.features.lifecycle.tokens import add_accounts
from tests.support.daemons import ROOT
from tests.support.rows import fetch
from tests.support.waiting import until

COMMAND = str(Path(sys.executable).with_name("queuectl"))
KEY = bytes(range(32))
CONFIRM = Purpose.CONFIRM
RING = KeyRing(Purpose.RECOVER, [TokenKey("k1", KEY)])


def by_hand(path: bytes, secret: bytes, code: bytes = b"") -> str:
    """A token as another program makes it."""
    signature = hmac.new(KEY, path + secret + code, hashlib.sha256).digest()
    return base64.urlsafe_b64encode(secret + signature).decode().rstrip("=")


def test_the_command_verifies(tmp_path: Path) -> None:
    run, file = CliRunner(), str(tmp_path / "key")
    assert run.invoke(main, ["token", "key", "--out", file]).exit_code == 0
    assert Path(file).stat().st_mode & 0o777 == 0o600
    assert run.invoke(main, ["token", "key", "--out", file]).exit_code == 2
    Path(file).write_text(KEY.hex())
    secret = bytes(32)
    verify = ["token", "verify", "--key", file]
    recover = by_hand(b"/recover", secret, b"06435")
    invite = by_hand(b"/confirm/invite?", secret)
    for arguments, status in [
        ([by_hand(b"/activate", secret)], 0),
        ([recover], 1),
        ([recover, "--purpose", "recover"], 1),
        ([recover, "--code", "06435"], 1),
        ([recover, "--purpose", "recover", "--code", "06435"], 0),
        ([recover, "--purpose", "recover", "--code", "06436"], 1),
        ([invite, "--purpose", "confirm", "--action", "invite"], 0),
        ([invite, "--purpose", "confirm", "--action", "invit"], 1),
        ([invite, "--purpose", "confirm"], 2),
        ([recover, "--purpose", "recover", "--action", "invite"], 2),
        (["x"], 1),
    ]:
        assert run.invoke(main, [*verify, *arguments]).exit_code == status, arguments
    Path(file).write_text(KEY.hex()[1:])
    result = run.invoke(main, [*verify, recover])
    assert (result.exit_code, "64 hexadecimal digits" in result.stderr) == (2, True)
    Path(file).unlink()
    result = run.invoke(main, [*verify, recover])
    assert (result.exit_code, "`queuectl token key` makes one" in result.stderr) == (
        2,
        True,
    )


def test_the_commands_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "programs" / "tokens.md").read_text()
    commands = text.partition("<!-- run: tokens -->\n```sh\n")[2].partition("```")[0]
    secret = bytes(32)
    tokens = {
        "activate": by_hand(b"/activate", secret),
        "recover": by_hand(b"/recover", secret, b"06435"),
        "confirm": by_hand(b"/confirm/invitation?", secret),
    }
    for line in commands.splitlines():
        program, *words = shlex.split(line, comments=True)
        assert program == "queuectl"
        name = words[words.index("--key") + 1].removesuffix(".key") if "--key" in words else ""
        words = [tokens[name] if word == "TOKEN" else word for word in words]
        result = CliRunner().invoke(main, words)
        assert result.exit_code == 0, (line, result.output)
        for each in tokens:
            Path(f"{each}.key").write_text(KEY.hex())
            Path(f"{each}.key").chmod(0o600)


def test_the_link_of_an_action_has_its_name_in_the_signature() -> None:
    secret = bytes(32)
    rings = KeyRings({CONFIRM: KeyRing(CONFIRM, [TokenKey("k1", KEY)])})
    order = {"purpose": "confirm", "action": "invitation", "secret": secret.hex(), "code": "06435",
             "key": "k1", "url": "https://a.example/confirm/invitation"}  # fmt: skip
    token = by_hand(b"/confirm/invitation?", secret, b"06435")
    assert rings.words(order, ("link",)) == {"link": f"{order['url']}?token={token}"}
    assert rings.ring(CONFIRM, "invitation").verify(token, "06435") == secret
    for other in ("invitatio", "invitation2", "activation"):
        assert rings.ring(CONFIRM, other).verify(token, "06435") is None
    for broken in ("", "In", None, 5, "a" * 64):
        with pytest.raises(ValueError, match="broken"):
            rings.words({**order, "action": broken}, ("link",))


def test_forgeries_are_refused() -> None:
    chance = random.Random(1)
    secret = chance.randbytes(32)
    good = by_hand(b"/recover", secret, b"06435")
    assert RING.verify(good, "06435") == secret_of(good, Purpose.RECOVER) == secret
    alphabet = "ABCabc019-_+/=. \n\u00e9\u0660"
    for _ in range(10_000):
        place = chance.randrange(len(good))
        forged = good[:place] + chance.choice(alphabet) + good[place + 1 :]
        if chance.random() < 0.2:
            forged = forged[:place] if chance.random() < 0.5 else f"{forged}{forged[:place]}"
        if forged != good:
            assert RING.verify(forged, "06435") is None, forged
    for code in ("", "06436", "6435", "006435", "\u0660" * 5, "-"):
        assert RING.verify(good, code) is None
    for last in "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_":
        assert (RING.verify(good[:-1] + last, "06435") is not None) == (last == good[-1])


def environment(database: str, **more: str) -> dict[str, str]:
    return {
        **os.environ, "MAILROOM_DATABASE_URL": database, "MAILROOM_SECRET_KEY": KEY.hex(),
        "MAILROOM_BATCH_TIMEOUT": "100", "PYTHONPATH": str(ROOT), **more,
    }  # fmt: skip


@pytest.mark.parametrize("form", ["json", "csv"])
def test_collect_prints_and_marks(accounts: psycopg.Connection, database: str, form: str) -> None:
    add_accounts(accounts, 2)
    add_accounts(accounts, 1, "lost", status="active")
    accounts.execute("SELECT recover('lost1')")
    accounts.execute("INSERT INTO accounts (email, login) VALUES ('c@b.example', E'x,1\n2')")
    add_accounts(accounts, 1, "late")
    accounts.execute("UPDATE tokens SET expires_at = epoch() WHERE id = 5")
    process = subprocess.Popen(
        [COMMAND, "lifecycle", "collect", "--format", form], text=True,
        env=environment(database), stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT,
    )  # fmt: skip
    assert process.stdout
    line = process.stdout.readline().rstrip("\n")
    if form == "json":
        rows = [[t["action"], t["email"], t["login"], t["secret"], t["code"]]
                for t in json.loads(line)]  # fmt: skip
        assert len(rows) == 4
        assert rows[-1][2] == "x,1\n2"
    else:
        values = line.split(",")
        rows = [values[n : n + 5] for n in range(0, len(values), 5)]
        assert [row[0] for row in rows] == ["2", "1", "1"]
    assert rows[0][1] == "lost1@b.example"
    assert RING.verify(rows[0][3], rows[0][4])
    until(lambda: fetch(accounts, "SELECT count(*) FROM waiting_tokens") == (0,))
    process.terminate()
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 0
    assert ("no mail" in errors) == (form == "csv")
    sums = "SELECT sum(taken)::integer, sum(refused)::integer, sum(expired)::integer"
    taken = fetch(accounts, f"{sums} FROM collections")
    assert taken == ((4, 0, 1) if form == "json" else (3, 1, 1))
    assert "tokens expired" in errors


def test_collect_prints_every_action(accounts: psycopg.Connection, database: str) -> None:
    """A code is signed where an action has one, and a mailbox without an account has no login."""
    open_shop(accounts)
    (account,) = fetch(accounts, "SELECT min(id) FROM accounts")
    accounts.execute("SELECT ask('deletion', %s)", (str(account),))
    data = Jsonb({"team": "Sales", "host": "Ann"})
    accounts.execute("SELECT ask('invitation', email => 'eve@b.example', data => %s)", (data,))
    with subprocess.Popen(
        [COMMAND, "lifecycle", "collect"], env=environment(database), stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, cwd=ROOT,
    ) as process:  # fmt: skip
        assert process.stdout
        by_action = {token["action"]: token for token in json.loads(process.stdout.readline())}
        until(lambda: fetch(accounts, "SELECT count(*) FROM waiting_tokens") == (0,))
        process.terminate()
    deletion, invitation = by_action["deletion"], by_action["invitation"]
    ring = KeyRing(CONFIRM, [TokenKey("k1", KEY)], "deletion")
    assert ring.verify(deletion["secret"], deletion["code"])
    assert ring.verify(deletion["secret"]) is None
    assert (invitation["email"], invitation["login"]) == ("eve@b.example", "")
    assert KeyRing(CONFIRM, [TokenKey("k1", KEY)], "invitation").verify(invitation["secret"])
    assert fetch(accounts, "SELECT sum(refused)::integer FROM collections") == (0,)


def test_collect_ends_when_nobody_reads_its_lines(
    accounts: psycopg.Connection, database: str
) -> None:
    add_accounts(accounts, 1)
    with subprocess.Popen(
        [COMMAND, "lifecycle", "collect"], env=environment(database), stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, cwd=ROOT,
    ) as process:  # fmt: skip
        assert process.stdout
        process.stdout.readline()
        process.stdout.close()
        until(lambda: fetch(accounts, "SELECT count(*) FROM waiting_tokens") == (0,))
        add_accounts(accounts, 1, "later")
        _, errors = process.communicate(timeout=30)
    assert process.returncode == EXIT_PIPE
    assert b"connects again" not in errors
    assert fetch(accounts, "SELECT count(*) FROM waiting_tokens") == (1,)  # for another one


def test_collect_names_bad_variables() -> None:
    result = CliRunner().invoke(
        main, ["lifecycle", "collect"],
        env={"MAILROOM_SECRET_KEY": "f" * 63, "MAILROOM_BATCH_LIMIT": "0",
             "MAILROOM_BATCH_TIMEOUT": "-1", "MAILROOM_DATABASE_URL": None},
    )  # fmt: skip
    assert result.exit_code == 2
    for name in ("DATABASE_URL", "SECRET_KEY", "BATCH_LIMIT", "BATCH_TIMEOUT"):
        assert f"MAILROOM_{name}: " in result.stderr
