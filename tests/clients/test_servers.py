"""Other mail servers as clients, and a proxy before smtpd."""

from __future__ import annotations

import re
import smtplib
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from bench.peer.postfix import Postfix
from bench.peer.system import Daemon
from tests.clients.site import DOMAIN, HOST, PASSWORD, USER, Site
from tests.peers.exim import CONFIG as EXIM
from tests.peers.exim import Exim
from tests.peers.opensmtpd import CONFIG as OPENSMTPD
from tests.peers.opensmtpd import OpenSmtpd
from tests.peers.servers import CELL
from tests.support.packages import folder
from tests.support.waiting import free_port, until

TO = f"alice@{DOMAIN}"
MESSAGE = f"From: {USER}\r\nTo: {TO}\r\nSubject: hello\r\n\r\nfrom a server\r\n.\r\nend\r\n"


def _send(port: int, *recipients: str) -> None:
    """Give a message to another server."""
    with smtplib.SMTP("127.0.0.1", port) as client:
        client.sendmail(USER, recipients or [TO], MESSAGE)


@contextmanager
def _postfix(place: Path, changes: dict[str, str]) -> Iterator[int]:
    with Postfix(folder(), changes).start(CELL, place, 25) as relay:
        try:
            yield relay.port
        finally:
            print((place / "log" / "maillog").read_text())


def _secure_postfix(site: Site, place: Path) -> AbstractContextManager[int]:
    passwords = site.file("passwords", f"/^/ {USER}:{PASSWORD.replace('$', '$$')}\n", 0o644)
    changes = {
        "relayhost": f"[{HOST}]:{site.submission}",
        "smtp_sasl_auth_enable": "yes",
        "smtp_sasl_password_maps": f"regexp:{passwords}",
        "smtp_sasl_security_options": "noanonymous",
        "smtp_tls_security_level": "secure",
        "smtp_tls_secure_cert_match": "hostname",
        "smtp_tls_CAfile": str(site.ca),
    }
    return _postfix(place / "server", changes)


@contextmanager
def _exim(site: Site, place: Path) -> Iterator[int]:
    secret = site.file("secret", PASSWORD, 0o644)
    ca = site.file("authority.pem", site.ca.read_text(), 0o644)
    transport = f"""\
  hosts_require_tls = *
  hosts_require_auth = *
  tls_verify_certificates = {ca}
  tls_verify_hosts = *
  tls_verify_cert_hostnames = *
"""
    login = f"""
begin authenticators
plain:
  driver = plaintext
  public_name = PLAIN
  client_send = ^{USER}^${{readfile{{{secret}}}}}
"""
    more = [text.replace("{", "{{").replace("}", "}}") for text in (transport, login)]
    config = EXIM.replace("  hosts_avoid_tls = *\n", more[0]) + more[1]
    config = config.replace("* {host} byname", f"* {HOST} byname")
    with Exim(folder(), config).start(CELL, place / "server", site.submission) as relay:
        yield relay.port


@contextmanager
def _opensmtpd(site: Site, place: Path) -> Iterator[int]:
    """Run it without a check of the certificate, because it only knows the system's authorities."""
    secrets = site.file("secrets", f"here {USER}:{PASSWORD}\n")
    config = OPENSMTPD.replace('action "hop"', f'table secrets file:{secrets}\naction "hop"', 1)
    config = config.replace(
        '"smtp://{host}:{next_hop}"',
        f'"smtp+tls://here@{HOST}:{{next_hop}}" tls no-verify auth <secrets>',
    )
    with OpenSmtpd(folder(), config).start(CELL, place / "server", site.submission) as relay:
        yield relay.port


@pytest.mark.parametrize(
    "start",
    [
        pytest.param(
            _secure_postfix, marks=pytest.mark.needs("root", "postfix", "libsasl2-modules")
        ),
        pytest.param(_exim, marks=pytest.mark.needs("root", "exim4-daemon-light")),
        pytest.param(_opensmtpd, marks=pytest.mark.needs("root", "opensmtpd")),
    ],
)
def test_server(
    site: Site, place: Path, start: Callable[[Site, Path], AbstractContextManager[int]]
) -> None:
    """All log in over STARTTLS; Postfix chooses SCRAM-SHA-256."""
    (place / "server").mkdir(mode=0o755)
    with start(site, place) as port:
        _send(port)
        site.wait(1)
    row = site.submitted("from a server")
    assert row["body"].endswith(b"\r\n\r\nfrom a server\r\n.\r\nend\r\n")


_HAPROXY = """\
global
  maxconn 100
defaults
  mode tcp
  timeout connect 5s
  timeout client 60s
  timeout server 60s
listen mail
  bind 127.0.0.1:{port}
  server smtpd 127.0.0.1:{proxied} {option}
"""


@pytest.mark.needs("haproxy")
@pytest.mark.parametrize("option", ["send-proxy", "send-proxy-v2"])
def test_haproxy(site: Site, option: str) -> None:
    """The client is the one before the proxy; without the header smtpd refuses."""
    port = free_port()
    text = _HAPROXY.format(port=port, proxied=site.proxied, option=option)
    config = site.file("haproxy.cfg", text)
    daemon = Daemon("haproxy", ["haproxy", "-db", "-f", config], site.folder / "haproxy.log", {})
    try:
        daemon.wait_greeting(port)
        context = ssl.create_default_context(cafile=site.ca)
        with smtplib.SMTP(HOST, port, source_address=("127.0.0.9", 0)) as client:
            client.starttls(context=context)
            client.login(USER, PASSWORD)
            client.sendmail(USER, [TO], MESSAGE)
    finally:
        daemon.stop()
    site.submitted("from a server", client="127.0.0.9")
    with socket.create_connection(("127.0.0.1", site.proxied), 30) as stranger:
        stranger.sendall(b"EHLO c\r\n")
        answer = b"".join(iter(lambda: stranger.recv(1000), b""))
    assert not answer.startswith(b"220")


_OUTCOME = r"to=<([abc]@[^>]+)>.* status=(\w+)"


@pytest.mark.needs("root", "postfix")
def test_postfix_by_lmtp(site: Site, place: Path) -> None:
    """Postfix bounces one bad recipient of three, and no other."""
    (place / "server").mkdir(mode=0o755)
    changes = {
        "default_transport": f"lmtp:inet:127.0.0.1:{site.lmtp}",
        "relayhost": "",
        "relay_transport": "$default_transport",
        "lmtp_bind_address": "127.0.0.5",  # not in relay.networks
        "lmtp_tls_security_level": "none",
        "lmtp_host_lookup": "native",
        "lmtp_dns_support_level": "disabled",
        "notify_classes": "",
    }
    with _postfix(place / "server", changes) as port:
        _send(port, "a@example.com", "b@elsewhere.example", "c@example.com")
        site.wait(2)
        log = place / "server" / "log" / "maillog"
        until(lambda: len(re.findall(_OUTCOME, log.read_text())) == 3)
    assert sorted(re.findall(_OUTCOME, log.read_text())) == [
        ("a@example.com", "sent"),
        ("b@elsewhere.example", "bounced"),
        ("c@example.com", "sent"),
    ]
    assert [row["recipient"] for row in site.mail()] == ["a@example.com", "c@example.com"]
