"""From an inserted account to the next hop, and where no signed token may be."""

from __future__ import annotations

import re
import shutil
import subprocess
from base64 import b64encode, urlsafe_b64decode
from pathlib import Path

import psycopg
import pytest

from pgmta.compose.token import KeyRing, Purpose, TokenKey
from pgmta.postgres.embedded.programs import tool
from pgmta_features.lifecycle.installation import install
from tests.features.lifecycle.tokens import KEYS, URL, add_accounts, put_templates, settings
from tests.support.database import PrivateServer
from tests.support.nexthop import Do, Transaction
from tests.support.rows import column, fetch
from tests.support.system import System
from tests.support.waiting import until


def ring(purpose: Purpose) -> KeyRing:
    return KeyRing(purpose, [TokenKey("k1", bytes.fromhex(KEYS[purpose]))])


def token_in(transaction: Transaction, path: str) -> str:
    content = (transaction.content or b"").replace(b"=\r\n", b"")  # a soft line break
    link = re.escape(f"{URL}{path}?token=").encode() + rb"(?:3D)?([\w-]{86})(?![\w-])"
    found = re.search(link, content)
    assert found, content
    return found[1].decode()


def refuses_bob(point: str, line: str, transaction: Transaction | None) -> Do | None:
    if point == "end of data" and transaction and "bob1@b.example" in transaction.recipients:
        return Do(line="554 5.7.1 no")
    return None


def test_links_arrive(accounts: psycopg.Connection, system: System, tmp_path: Path) -> None:
    hop = system.hop()
    system.queued(hop, **settings(tmp_path, timeout="100ms"))
    add_accounts(accounts, 1, "ann")
    add_accounts(accounts, 1, "eve", status="active")
    accounts.execute("SELECT recover('eve1')")
    hop.wait_kept(2)
    until(lambda: fetch(accounts, "SELECT count(*) FROM pgmta.queue") == (0,))
    by_name = {kept.recipients[0].partition("@")[0]: kept for kept in hop.kept}
    secret = ring(Purpose.ACTIVATE).verify(token_in(by_name["ann1"], "/activate"))
    assert secret
    recover = token_in(by_name["eve1"], "/recover")
    (code,) = column(accounts, "SELECT code FROM tokens WHERE action = 'password_recovery'")
    assert ring(Purpose.RECOVER).verify(recover, code)
    assert ring(Purpose.ACTIVATE).verify(recover, code) is None
    why = "SELECT why FROM token_consume(%s, 'activation')"
    assert fetch(accounts, why, secret) == (None,)
    assert fetch(accounts, why, secret) == ("consumed",)


@pytest.mark.slow
def test_no_dump_log_or_file_of_the_server_has_a_token(
    private_server: PrivateServer, tmp_path: Path
) -> None:
    """The write-ahead log has each octet that was ever stored, and the server's log each error."""
    uri = private_server.uri
    install(uri)
    with psycopg.connect(uri, autocommit=True) as db:
        db.execute("SET search_path = lifecycle")
        put_templates(db)
        db.execute("ALTER SYSTEM SET log_min_duration_statement = 0")
        db.execute("SELECT pg_reload_conf()")
    system = System(tmp_path, uri)
    try:
        hop = system.hop(refuses_bob)
        daemon = system.queued(hop, **settings(tmp_path, timeout="100ms"))
        with psycopg.connect(uri, autocommit=True) as db:
            db.execute("SET search_path = lifecycle")
            for name in ("ann", "bob"):
                add_accounts(db, 1, name)
            add_accounts(db, 1, "eve", status="active")
            db.execute("SELECT recover('eve1')")
            hop.wait_kept(2)
            until(lambda: fetch(db, "SELECT count(*) FROM pgmta.queue") == (0,))
            secrets = column(db, "SELECT secret FROM tokens")
            codes = column(db, "SELECT coalesce(code, '') FROM tokens")
            until(lambda: fetch(db, "SELECT count(*) FROM pgmta.transcripts") == (1,))
        daemon.stop()
        dump = subprocess.run([tool("pg_dump"), uri], capture_output=True, check=True).stdout
        assert b"bob1@b.example" in dump
        private_server.stop()
        files = [path for path in private_server.folder.rglob("*") if path.is_file()]
        texts = [*(path.read_bytes() for path in files), dump, daemon.story().encode()]
        octets = b"\0".join(texts)
        assert bytes(secrets[0]) in octets or secrets[0].hex().encode() in octets
        assert any(
            b"lifecycle.collect(" in path.read_bytes() for path in files if "log" in path.name
        )
        for secret, code in zip(secrets, codes, strict=True):
            for purpose in Purpose:
                token = ring(purpose).sign(bytes(secret), code if purpose == "recover" else "")
                mac = urlsafe_b64decode(f"{token}==")[32:]
                for form in (token.encode(), mac, mac.hex().encode(), b64encode(mac)):
                    assert form not in octets
    finally:
        system.clean()


@pytest.mark.slow
def test_mail_waits_for_its_key(
    accounts: psycopg.Connection, system: System, tmp_path: Path
) -> None:
    hop = system.hop()
    config = settings(tmp_path, timeout="100ms")
    first = system.queued(**config, workers=[{"name": "none", "where": "false"}])
    add_accounts(accounts, 1)
    until(lambda: fetch(accounts, "SELECT count(*) FROM pgmta.queue") == (1,))
    first.stop()
    keys: dict[str, list[str]] = {}
    for purpose, (file,) in config["tokens"].items():
        shutil.copy(tmp_path / file, tmp_path / f"{file}-2")
        keys[purpose] = [f"{file}-2"]
    worker = system.queued(hop, tokens=keys)
    worker.wait_log("waits for a key")
    assert column(accounts, "SELECT status FROM pgmta.queue") != ["HOLD"]
    worker.reload(worker.config | {"tokens": config["tokens"]})
    hop.wait_kept(1)


def test_rotation_keeps_old_links() -> None:
    old, new = (TokenKey(f"k{n}", bytes([n]) * 32) for n in (1, 2))
    secret = bytes(32)
    link = KeyRing(Purpose.ACTIVATE, [old]).sign(secret)
    both = KeyRing(Purpose.ACTIVATE, [new, old])
    assert both.verify(link) == both.verify(both.sign(secret)) == secret
    assert both.sign(secret, key_id="k1") == link != both.sign(secret)
    assert KeyRing(Purpose.ACTIVATE, [new]).verify(link) is None
