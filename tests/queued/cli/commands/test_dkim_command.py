"""`queuectl dkim`: keys in files and in the table, their records, and refusals."""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from click.testing import CliRunner, Result
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from psycopg import errors as pg_errors
from psycopg import sql

from queued.cli.queuectl import main
from queued.signing.key_problem import KeyProblem
from queued.signing.signing_key import check_record, pem_of, public_of, read_private
from tests.sql.test_roles import acting
from tests.support.name_server import NameServer, serving_names


class Site:
    """A queued.yaml with keys, a database, and a name server."""

    def __init__(self, folder: Path, uri: str, names: NameServer) -> None:
        self.folder = folder
        self.uri = uri
        self.names = names
        self.path = folder / "queued.yaml"
        self.write()

    def write(self, *keys: dict[str, Any], table: bool = True) -> None:
        self.path.write_text(yaml.safe_dump({
            "environment": {"database": {"uri": self.uri}},
            "delivery": {"dns": {"servers": [self.names.where], "timeout": "2s"}},
            "signing": {"keys": list(keys), "table": table},
        }))  # fmt: skip

    def run(self, words: str) -> Result:
        command, *rest = words.split()
        return CliRunner().invoke(main, ["dkim", command, "-c", str(self.path), *rest])

    def publish(self, record: str, *others: str, name: str) -> None:
        parts = [re.findall(".{1,200}", text) for text in (record, *others)]
        self.names.zone[name] = {"TXT": [" ".join(f'"{p}"' for p in text) for text in parts]}


@pytest.fixture
def site(tmp_path: Path, database: str) -> Iterator[Site]:
    with serving_names({}) as names:
        yield Site(tmp_path, database, names)


def strings(line: str) -> list[str]:
    return re.findall(r'"([^"]*)"', line)


def test_key_in_a_file_from_its_making_to_its_check(site: Site) -> None:
    file = site.folder / "s1.pem"
    made = site.run(f"new A.Example S1 --bits 3072 --file {file}")
    assert made.exit_code == 0, made.output
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    line = made.stdout.splitlines()[0]
    assert line.startswith('s1._domainkey.a.example. IN TXT ( "v=DKIM1; k=rsa; p=')
    assert max(map(len, strings(line))) == 255
    assert "PRIVATE" not in made.output
    again = site.run(f"new a.example s1 --file {file}")
    assert (again.exit_code, again.stderr) == (1, f"error: there is a file {file} already\n")
    for words, reason in [
        ("new a.example s2", "give either --file PATH or --table"),
        ("new a..example s2 --table", "DOMAIN: expected a domain: malformed domain 'a..example'"),
        ("new a.example s_ --table", "SELECTOR: 's_' is no DKIM selector"),
        ("new a.example s2 --table --type ed25519 --bits 2048", "--bits is for keys of type rsa"),
        ("new a.example s2 --table --active-from soon", "--active-from: 'soon' is no time"),
    ]:
        wrong = site.run(words)
        assert (wrong.exit_code, reason in wrong.stderr) == (2, True), wrong.stderr

    site.write({"domain": "a.example", "selector": "s1", "file": "s1.pem"})
    (listed,) = json.loads(site.run("list --json").stdout)
    assert (listed["state"], listed["type"], listed["problem"]) == ("signs", "rsa", None)
    assert site.run("dns").stdout == made.stdout
    assert "has no TXT record" in site.run("test").stdout
    site.publish("".join(strings(line)), name="s1._domainkey.a.example")
    site.write({"domain": "a.example", "selector": "s1", "file": "./s1.pem"})  # answers are kept
    good = site.run("test a.example")
    assert (good.exit_code, good.stdout) == (0, "a.example/s1: ok\n")

    file.write_text("topsecret")
    broken = site.run("dns")
    assert (broken.exit_code, broken.stdout) == (1, "")
    assert broken.stderr.endswith("s1.pem: it is no private key in PEM\n")
    assert site.run("list").exit_code == site.run("test").exit_code == 1
    assert "topsecret" not in site.run("list").output + site.run("test").output


def test_keys_in_the_table(site: Site, db: psycopg.Connection) -> None:
    assert site.run("list").stderr == f"error: there is no key in {site.path}\n"
    made = json.loads(site.run("new a.example e --type ed25519 --table --json").stdout)
    assert made["owner"] == "e._domainkey.a.example"
    taken = site.run("new a.example e --table")
    assert taken.stderr == "error: there is a key a.example/e already\n"
    assert site.run("new a.example next --type ed25519 --table --active-from 2099-01-01").stdout
    assert site.run("new b.example r --table").exit_code == 0
    assert made["unpublished"] is True
    site.path.write_text(site.path.read_text().replace("table: true", "table: false"))
    assert "signing.table is false: the keys in the table were not read" in site.run("list").stderr
    site.path.write_text(site.path.read_text().replace("table: false", "table: true"))

    def states() -> dict[str, str]:
        return {k["selector"]: k["state"] for k in json.loads(site.run("list --json").stdout)}

    assert states() == dict.fromkeys(("e", "next", "r"), "unpublished")
    assert "has no TXT record" in site.run("test b.example r").stdout
    db.execute("UPDATE dkim_keys SET unpublished = false")
    assert states() == {"e": "signs", "next": "waits", "r": "signs"}
    db.execute("UPDATE dkim_keys SET active_from = now() - interval '1 s' WHERE selector = 'next'")
    db.execute("UPDATE dkim_keys SET active_from = now() - interval '1 h' WHERE selector = 'e'")
    assert states() == {"e": "replaced", "next": "signs", "r": "signs"}
    db.execute("UPDATE dkim_keys SET unpublished = true WHERE selector = 'next'")
    assert states() == {"e": "signs", "next": "unpublished", "r": "signs"}

    record = made["record"]
    name = made["owner"]
    for published, said in [
        ([record], "a.example/e: ok"),
        ([record.replace("k=ed25519", "k=rsa")], "k=rsa, and the key is ed25519"),
        ([record, "v=spf1"], "has 2 TXT records, and may have one"),
        (["v=DKIM1; k=ed25519; p="], "the key is revoked"),
        (["p=x; v=DKIM1"], "v=DKIM1 is not its first tag"),
        ([record + "; t=y"], "t=y: verifiers treat the mail as unsigned"),
        ([record + "; h=sha1"], "h=sha1 does not permit sha256"),
    ]:
        site.publish(*published, name=name)
        result = site.run("test a.example e")
        assert said in result.stdout
        assert result.exit_code == (0 if ": ok" in result.stdout else 1)

    warned = CliRunner()
    site.write(table=False)
    result = warned.invoke(main, ["dkim", "new", "-c", str(site.path), "c.example", "s", "--table"])
    assert "signing.table is false" in result.stderr
    assert site.run("remove c.example s").stdout == "key c.example/s removed\n"
    assert site.run("remove c.example s").exit_code == 1
    actions = db.execute(
        "SELECT action, condition, details::text FROM audit ORDER BY id"
    ).fetchall()
    assert [action[:2] for action in actions][-2:] == [
        ("dkim add", "c.example/s"), ("dkim remove", "c.example/s")
    ]  # fmt: skip
    assert "PRIVATE" not in str(actions)


def test_only_queued_reads_private_parts(site: Site, database: str, db: psycopg.Connection) -> None:
    site.uri = acting(database, "pgmta_operator")
    site.write()
    assert site.run("new a.example e --type ed25519 --table").exit_code == 0
    record = "".join(strings(site.run("dns").stdout))
    site.publish(record, name="e._domainkey.a.example")
    site.uri = acting(database, "pgmta_reader")
    site.write()
    assert "  it signs nothing: this login may not change keys\n" in site.run("test").stdout
    site.uri = acting(database, "pgmta_operator")
    site.write()
    (listed,) = json.loads(site.run("list --json").stdout)
    assert listed["state"] == "unpublished"
    tested = site.run("test")
    assert tested.exit_code == 0
    assert "no sample signed: only pgmta_queued reads the private part" in tested.stdout
    assert tested.stdout.endswith("  it signs from now on\n")
    (listed,) = json.loads(site.run("list --json").stdout)
    assert listed["state"] == "signs"
    assert "signs from now on" not in site.run("test").stdout
    for role in ("pgmta_operator", "pgmta_reader", "pgmta_smtpd", "pgmta_submit"):
        with db.transaction(force_rollback=True):
            db.execute(sql.SQL("SET LOCAL ROLE {}").format(sql.Identifier(role)))
            with pytest.raises(pg_errors.InsufficientPrivilege), db.transaction():
                db.execute("SELECT private_key FROM dkim_keys")
            with pytest.raises(pg_errors.InsufficientPrivilege), db.transaction():
                db.execute("SELECT * FROM dkim_keys")
    with psycopg.connect(acting(database, "pgmta_queued")) as queued:
        ((private,),) = queued.execute("SELECT private_key FROM pgmta.dkim_keys").fetchall()
    assert public_of(read_private(private.encode())) in record


@pytest.mark.parametrize("text", ["", "topsecret", "-----BEGIN PRIVATE KEY-----\ntopsecret"])
def test_texts_that_are_no_key(text: str) -> None:
    with pytest.raises(KeyProblem) as error:
        read_private(text.encode())
    assert "topsecret" not in str(error.value)


def test_key_that_is_too_small_or_has_a_password() -> None:
    curve = ec.generate_private_key(ec.SECP256R1())
    usual = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    with pytest.raises(KeyProblem, match="neither RSA nor Ed25519"):
        read_private(curve.private_bytes(*usual, serialization.NoEncryption()))
    key = ed25519.Ed25519PrivateKey.generate()
    hidden = key.private_bytes(*usual, serialization.BestAvailableEncryption(b"x"))
    with pytest.raises(KeyProblem, match="it has a password"):
        read_private(hidden)
    assert check_record(f"v=DKIM1;k=ed25519; p={public_of(key)} ;t=s", "ed25519", public_of(key))
    assert pem_of(key).startswith("-----BEGIN PRIVATE KEY-----")
