"""200 odd bodies through other mail servers, octet for octet; with TLS and passwords."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml

from tests.peers.bodies import COUNT, messages
from tests.peers.collector import Collector
from tests.peers.servers import PASSWORD, USER, Dovecot, dovecot, exim, opensmtpd, postfix
from tests.support.authority import Authority
from tests.support.system import System
from tests.support.waiting import until

TRACE = "Received: by test\r\n"
SECURE = {"tls": "verify", "login": "peer"}
pytestmark = pytest.mark.needs("root")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


@pytest.fixture
def mailboxes(place: Path) -> Iterator[Dovecot]:
    with dovecot(place / "dovecot") as running:
        yield running


def _put(system: System, mail: dict[str, bytes]) -> None:
    """Put messages into the queue as they are."""
    with psycopg.connect(system.uri) as db:
        for recipient, content in mail.items():
            row = db.execute(
                "INSERT INTO messages (id, size, trace, body)"
                " VALUES (nextval('message_ids'), %s, %s, %s) RETURNING id",
                (len(content), TRACE, content),
            ).fetchone()
            assert row
            db.execute(
                "INSERT INTO queue (message_id, sender, recipient, domain)"
                " VALUES (%s, 'sender@example.org', %s, %s)",
                (row[0], recipient, recipient.rpartition("@")[2]),
            )
        db.execute("NOTIFY pgmta_queue")


def _queued(system: System, authority: Authority, route: dict[str, Any], mechanism: str) -> None:
    """Start a queued with one route."""
    secret = system.folder / "secret"
    secret.write_text(f"{PASSWORD}\n")
    secret.chmod(0o600)
    login: dict[str, Any] = {"user": USER, "password_file": str(secret)}
    if mechanism:
        login["mechanisms"] = [mechanism]
    shaping = {"logins": {"peer": login}, "routes": [{"domain": "peer.test", **route}]}
    (system.folder / "shaping.yaml").write_text(yaml.safe_dump(shaping, allow_unicode=True))
    system.queued(shaping="shaping.yaml", delivery={"tls": {"ca": str(authority.path)}})


def _same(sent: dict[str, bytes], arrived: dict[str, list[bytes]]) -> None:
    """Assert that each message arrived once, with nothing but header fields before it."""
    assert sorted(arrived) == sorted(sent)
    wrong = []
    for recipient, content in sent.items():
        (found,) = arrived[recipient]
        wanted = TRACE.encode() + content + (b"" if content.endswith(b"\r\n") else b"\r\n")
        before = found[: -len(wanted)]
        if not found.endswith(wanted) or b"\r\n\r\n" in before:
            wrong.append((recipient, wanted[-200:], found[-200:]))
    assert not wrong, f"{len(wrong)} altered: {wrong[:3]}"


def _through(
    system: System,
    authority: Authority,
    hop: Collector,
    peer: AbstractContextManager[int],
    **route: object,
) -> None:
    """Send the messages through a peer to the hop; `mechanism` is one of SASL."""
    sent = messages("peer.test")
    mechanism = str(route.pop("mechanism", ""))
    with peer as port:
        _put(system, sent)
        to = {"to": [{"host": "localhost", "port": port}], **route}
        _queued(system, authority, to, mechanism)
        until(lambda: len(hop.arrived) >= COUNT, 90, "everything at the collector")
        system.wait_empty()
    _same(sent, hop.arrived)
    rows = system.ask("SELECT DISTINCT tls_verified FROM attempts")
    assert [row["tls_verified"] for row in rows] == ["pkix" if "login" in route else None]


@pytest.mark.needs("postfix", "dovecot-core", "dovecot-lmtpd")
def test_postfix(
    system: System, authority: Authority, place: Path, hop: Collector, mailboxes: Dovecot
) -> None:
    """By SCRAM-SHA-256, which Dovecot checks."""
    server = postfix(place, authority, hop.port, mailboxes.auth)
    _through(system, authority, hop, server, mechanism="SCRAM-SHA-256", **SECURE)


@pytest.mark.needs("exim4-daemon-light")
@pytest.mark.parametrize("mechanism", ["PLAIN", "LOGIN"])
def test_exim(
    system: System, authority: Authority, place: Path, hop: Collector, mechanism: str
) -> None:
    """By PLAIN, and by LOGIN."""
    server = exim(place, authority, hop.port)
    _through(system, authority, hop, server, mechanism=mechanism, **SECURE)


@pytest.mark.needs("opensmtpd")
def test_opensmtpd(system: System, authority: Authority, place: Path, hop: Collector) -> None:
    """In plain text: see opensmtpd()."""
    _through(system, authority, hop, opensmtpd(place, hop.port), tls="none")


@pytest.mark.needs("dovecot-core", "dovecot-lmtpd")
def test_dovecot(system: System, authority: Authority, mailboxes: Dovecot) -> None:
    """By LMTP into mailboxes."""
    sent = messages("peer.test")
    _put(system, sent)
    to = {"to": [f"127.0.0.1:{mailboxes.lmtp}"], "transport": "lmtp", "tls": "none"}
    _queued(system, authority, to, "")
    system.wait_empty()
    users = {recipient: recipient.partition("@")[0] for recipient in sent}
    until(lambda: all(mailboxes.delivered(user) for user in users.values()), 30, "all delivered")
    _same(sent, {recipient: mailboxes.delivered(user) for recipient, user in users.items()})
