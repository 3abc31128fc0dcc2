"""Mail is signed at delivery: which keys, which faults, and what waits for it."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from click.testing import CliRunner, Result

from pgmta.model import DkimKey
from pgmta.store.records.dkim_keys import KeyTable
from queued.cli.queuectl import main as queuectl
from queued.signing.signing_key import pem_of, public_of, type_of
from tests.support.dkim import DOMAIN, Keys
from tests.support.name_server import serving_names
from tests.support.nexthop import NextHop
from tests.support.operating import operating
from tests.support.submit import post
from tests.support.system import System
from tests.support.waiting import until


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    """Keys in files of the test."""
    return Keys(tmp_path)


def mail(origin: str = f"ann@{DOMAIN}", size: int = 0) -> bytes:
    text = (b"Some  words \t\r\n.\r\n" * (size // 17 + 1))[: size or 50].rstrip() + b"\r\n"
    header = f"From: Ann <{origin}>\r\nTo: b@b.example\r\nSubject:  two\r\n  lines\r\n"
    return header.encode() + b"\r\n" + text


def contents(hop: NextHop) -> list[bytes]:
    return [each.content for each in hop.transactions if each.content is not None]


@pytest.mark.slow
def test_both_kinds_of_keys_sign_content_of_every_size(system: System, keys: Keys) -> None:
    hop, other = system.hop(), system.hop()
    entries = [keys.entry("r", "rsa"), keys.entry("e")]
    smtpd = system.smtpd()
    system.queued(
        routes={"*": hop.target, "c.example": other.target},
        signing={"keys": entries, "expire": "7d"},
    )
    sizes = [0, 5_000, 100_000, 300_000, 3_000_000]
    for size in sizes:
        recipients = ["b@b.example", "b2@b.example", "c@c.example"]
        post(smtpd.port, "s@s.example", recipients, mail(size=size))
        post(smtpd.port, "s@s.example", ["b@b.example"], mail("x@other.example", size))
        post(smtpd.port, "s@s.example", ["b@b.example"], mail(f"x@sub.{DOMAIN}", size))
    system.wait_empty()
    both = ["a.example/r", "a.example/e"]
    found = [(keys.signers(each), len(each)) for each in contents(hop)]
    assert [signed for signed, _ in found].count(both) == 2 * len(sizes)
    assert [signed for signed, _ in found].count([]) == len(sizes), "without a key of its domain"
    assert [keys.signers(each) for each in contents(other)] == [both] * len(sizes)
    signed = contents(other)[0]
    assert b" x=" in signed.partition(b"\r\n\r\n")[0]
    assert keys.signers(signed.replace(b"words", b"wordz", 1)) == [f"bad {name}" for name in both]


def store(system: System, keys: Keys, selector: str, kind: str = "ed25519") -> None:
    """Add a key to the table."""
    keys.make(selector, kind)
    private = keys.private[f"{DOMAIN}/{selector}"]
    with operating(system.uri, lambda db: KeyTable(db, "test")) as table:
        key = DkimKey(DOMAIN, selector, type_of(private), 0.0, pem_of(private))
        assert table.add(key, public_of(private), at_once=True)


@pytest.mark.slow
def test_key_that_dns_does_not_have_signs_nothing(system: System, keys: Keys) -> None:
    """Until its record is there the older key signs, and then the new one within a second."""
    hop = system.hop()
    smtpd = system.smtpd()
    store(system, keys, "old")
    system.queued(hop, signing={"table": True})
    config = keys.folder / "queued.yaml"
    with serving_names({}) as names:
        config.write_text(yaml.safe_dump({
            "environment": {"database": {"uri": system.uri}}, "signing": {"table": True},
            "delivery": {"dns": {"servers": [names.where], "timeout": "2s"}},
        }))  # fmt: skip

        def run(*words: str) -> Result:
            command, *rest = words
            return CliRunner().invoke(queuectl, ["dkim", command, "-c", str(config), *rest])

        def signed(origin: str = DOMAIN) -> str:
            post(smtpd.port, "s@s.example", ["b@b.example"], mail(f"x@{origin}"))
            system.wait_empty()
            header = contents(hop)[-1].partition(b"\r\n\r\n")[0]
            return b"".join(re.findall(rb"\ts=(\w+);", header)).decode()

        new = ("new", DOMAIN, "new", "--table", "--type", "ed25519", "--json")
        record = json.loads(run(*new).stdout)["record"]
        first = run("new", "first.example", "f", "--table")
        assert "the key signs nothing yet" in first.stderr
        assert run("new", "forced.example", "now", "--table", "--force").exit_code == 0
        until(lambda: signed("forced.example") == "now")  # so queued has read the table again
        assert (signed(), signed("first.example")) == ("old", "")
        failed = run("test", DOMAIN, "new")
        assert (failed.exit_code, "has no TXT record" in failed.stdout) == (1, True)
        parts = " ".join(f'"{part}"' for part in re.findall(".{1,200}", record))
        names.zone[f"new._domainkey.{DOMAIN}"] = {"TXT": [parts]}
        config.write_text(config.read_text().replace("2s", "3s"))  # answers are kept
        tested = run("test", DOMAIN, "new")
        assert (tested.exit_code, "it signs from now on" in tested.stdout) == (0, True)
        until(lambda: signed() == "new")


@pytest.mark.slow
def test_key_of_the_table_counts_at_once_and_until_it_is_removed(
    system: System, keys: Keys
) -> None:
    hop = system.hop()
    smtpd = system.smtpd()
    system.queued(hop, signing={"table": True, "rules": [{"from": DOMAIN}]})
    post(smtpd.port, "s@s.example", ["b@b.example"], mail())
    (row,) = system.wait_queue(lambda rows: rows and rows[0]["status"] == "DEFERRED")
    assert row["last_reply"] == "4.3.5 not signed: there is no active key of a.example"
    store(system, keys, "t1")
    system.wait_empty()
    store(system, keys, "t2")

    def signed() -> list[str]:
        post(smtpd.port, "s@s.example", ["b@b.example"], mail())
        system.wait_empty()
        return keys.signers(contents(hop)[-1])

    until(lambda: signed() == ["a.example/t2"])
    assert keys.signers(contents(hop)[0]) == ["a.example/t1"]
    system.ask("UPDATE dkim_keys SET private_key = "
               "'-----BEGIN PRIVATE KEY-----x' WHERE selector = 't2'")  # fmt: skip

    def deferred() -> bool:
        post(smtpd.port, "s@s.example", ["c@b.example"], mail())
        return bool(
            system.ask(
                "SELECT 1 FROM attempts WHERE event = 'deferred' AND recipient = 'c@b.example'"
            )
        )

    until(deferred)
    system.ask("DELETE FROM dkim_keys WHERE selector = 't2'")
    system.wait_empty()
    assert keys.signers(contents(hop)[-1]) == ["a.example/t1"]
    replies = {attempt["reply"] for attempt in system.attempts()}
    assert "4.3.5 not signed: key a.example/t2: it is no private key in PEM" in replies


def test_broken_key_defers_its_mail_and_no_other(system: System, keys: Keys) -> None:
    hop = system.hop()
    good, lost, odd, shown = (keys.entry(name, domain=f"{name}.example") for name in "glos")
    Path(lost["file"]).unlink()
    Path(odd["file"]).write_text("-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYD\n")
    os.chmod(shown["file"], 0o644)
    smtpd = system.smtpd()
    changes: dict[str, Any] = {"signing": {"keys": [good, lost, odd, shown]}}
    queued = system.queued(hop, retry={"intervals": ["1h"], "jitter": 0}, **changes)
    assert {event["key"] for event in queued.events("a key can't be used")} == {
        "l.example/l", "o.example/o", "s.example/s"
    }  # fmt: skip
    for name in "glos":
        post(smtpd.port, "s@s.example", [f"{name}@b.example"], mail(f"x@{name}.example"))
    rows = system.wait_status(l="DEFERRED", o="DEFERRED", s="DEFERRED")
    until(lambda: len(contents(hop)) == 1)
    assert [keys.signers(each) for each in contents(hop)] == [["g.example/g"]]
    for name, row in rows.items():
        start = f"4.3.5 not signed: key {name}.example/{name}: {keys.folder}/{name}.example"
        assert row["last_reply"].startswith(start)
    assert "No such file" in rows["l"]["last_reply"]
    assert "0644" in rows["s"]["last_reply"]
    assert "MC4CAQAwBQYD" not in queued.story()

    # SIGHUP reads the files again
    for name in "los":
        keys.make(name, domain=f"{name}.example")
    queued.reload(queued.config)
    system.ask("UPDATE queue SET status = 'QUEUED', next_attempt = now()")
    system.ask("NOTIFY pgmta_queue")
    system.wait_empty()
    assert sorted(keys.signers(each)[0] for each in contents(hop)) == [
        "g.example/g", "l.example/l", "o.example/o", "s.example/s"
    ]  # fmt: skip

    # and unsigned mail is sent if that is asked for
    Path(lost["file"]).unlink()
    changes = {"signing": {**changes["signing"], "missing": "send"}}
    queued.reload({**queued.config, **changes})
    post(smtpd.port, "s@s.example", ["l@b.example"], mail("x@l.example"))
    system.wait_empty()
    assert keys.signers(contents(hop)[-1]) == []


def test_rules(system: System, keys: Keys) -> None:
    hop = system.hop()
    smtpd = system.smtpd()
    entries = [keys.entry("a"), keys.entry("s", domain="s.example"), keys.entry("m", "rsa")]
    rules = [
        {"from": "quiet.example", "sign": "none"},
        {"metadata.kind": "bulk", "sign": DOMAIN, "selectors": ["m"]},
        {"from": "*.example", "sender_domain": "s.example", "sign": "sender"},
        {"sender": "<>", "sign": "from", "selectors": ["a"], "missing": "send"},
    ]
    system.queued(hop, signing={"keys": entries, "rules": rules})

    def signed(sender: str, origin: str) -> list[str]:
        post(smtpd.port, sender, ["b@b.example"], mail(origin))
        system.wait_empty()
        return keys.signers(contents(hop)[-1])

    assert signed("s@s.example", f"x@{DOMAIN}") == ["s.example/s"]
    assert signed("s@s.example", "x@quiet.example") == []
    assert signed("s@s.example", "x@other.invalid") == []
    assert signed("", f"x@{DOMAIN}") == ["a.example/a"]
    assert signed("", "x@c.example") == []
    assert signed("s@s.example", f"x@y.example, y@{DOMAIN}") == []
    content = mail(f"x@{DOMAIN}")
    system.ask(
        "SELECT submit('s@s.example', '{b1@b.example,b2@b.example}', %s,"
        " metadata => '{\"kind\": \"bulk\"}')", content
    )  # fmt: skip
    system.wait_empty()
    assert keys.signers(contents(hop)[-1]) == ["a.example/m"]


@pytest.mark.slow
def test_table_that_cannot_be_read_stops_no_other_mail(system: System, keys: Keys) -> None:
    """Mail of other domains may need one of its keys; the keys of files still sign."""
    hop = system.hop()
    smtpd = system.smtpd()
    store(system, keys, "t")
    entry = keys.entry("f", domain="f.example")
    with psycopg.connect(system.uri) as other:
        other.execute("LOCK pgmta.dkim_keys")
        queued = system.queued(hop, signing={"table": True, "keys": [entry]})
        for name, origin in (("f", "f.example"), ("t", DOMAIN), ("u", "sub.f.example")):
            post(smtpd.port, "s@s.example", [f"{name}@b.example"], mail(f"x@{origin}"))
        rows = system.wait_status(t="DEFERRED", u="DEFERRED")
        until(lambda: len(contents(hop)) == 1)
    words = "4.3.5 not signed: the table of keys can't be read: canceling statement"
    assert all(row["last_reply"].startswith(words) for row in rows.values())
    assert queued.events("can't read the keys")
    system.wait_empty()
    signers = sorted(keys.signers(each) for each in contents(hop))
    assert signers == [["a.example/t"], ["f.example/f"], ["f.example/f"]]
