"""The other mail servers: with TLS and passwords before a next hop that keeps everything."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.peer.cells import Cell
from bench.peer.postfix import Postfix
from bench.peer.system import Daemon
from tests.peers.exim import CONFIG as EXIM
from tests.peers.exim import Exim
from tests.peers.opensmtpd import OpenSmtpd
from tests.support.authority import Authority
from tests.support.packages import folder, program
from tests.support.waiting import free_port

USER, PASSWORD = "shop", 'p"a\\ss wörd'
CELL = Cell("e2e", 1, sessions=20)


@dataclass
class Dovecot:
    """A running Dovecot: LMTP, and passwords for Postfix."""

    lmtp: int
    auth: int
    mail: Path

    def delivered(self, user: str) -> list[bytes]:
        """Return the messages of a user."""
        new = self.mail / user / "new"
        return [path.read_bytes() for path in sorted(new.iterdir())] if new.is_dir() else []


_DOVECOT = """\
base_dir = {folder}/run
state_dir = {folder}/state
log_path = {folder}/log
protocols = lmtp
ssl = no
listen = 127.0.0.1
mail_location = maildir:{folder}/mail/%n
mail_save_crlf = yes
mail_uid = mail
mail_gid = mail
first_valid_uid = 1
auth_mechanisms = plain login scram-sha-256
passdb {{
  driver = passwd-file
  args = scheme=PLAIN username_format=%u {folder}/users
}}
userdb {{
  driver = static
  args = uid=mail gid=mail home={folder}/mail/%n allow_all_users=yes
}}
service lmtp {{
  inet_listener lmtp {{
    port = {lmtp}
  }}
}}
service auth {{
  inet_listener {{
    port = {auth}
  }}
}}
service stats {{
  client_limit = 1000
}}
"""


@contextmanager
def dovecot(place: Path) -> Iterator[Dovecot]:
    """Run Dovecot with all its files in a folder."""
    place.mkdir()
    place.chmod(0o755)
    running = Dovecot(free_port(), free_port(), place / "mail")
    (place / "run").mkdir()
    (place / "state").mkdir()
    running.mail.mkdir()
    shutil.chown(running.mail, "mail", "mail")
    (place / "users").write_text(f"{USER}:{PASSWORD}\n")
    config = place / "dovecot.conf"
    config.write_text(_DOVECOT.format(folder=place, lmtp=running.lmtp, auth=running.auth))
    daemon = Daemon(
        "dovecot", [program("dovecot") or "dovecot", "-F", "-c", config], place / "out", {}
    )
    try:
        daemon.wait_greeting(running.lmtp)
        yield running
    finally:
        daemon.stop()


@contextmanager
def postfix(place: Path, authority: Authority, next_hop: int, auth: int) -> Iterator[int]:
    """Run Postfix, which asks Dovecot for passwords; return its port."""
    pem = authority.issue(["localhost"]).path
    changes = {
        "smtpd_tls_security_level": "encrypt",
        "smtpd_tls_chain_files": str(pem),
        "smtpd_tls_loglevel": "1",
        "smtpd_sasl_auth_enable": "yes",
        "smtpd_sasl_type": "dovecot",
        "smtpd_sasl_path": f"inet:127.0.0.1:{auth}",
        "smtpd_sasl_tls_security_options": "noanonymous",
        "mynetworks": "192.0.2.1/32",
        "smtpd_relay_restrictions": "permit_sasl_authenticated, reject",
        "smtpd_client_restrictions": "",
    }
    server = Postfix(folder(), changes)
    with server.start(CELL, place, next_hop) as relay:
        yield relay.port


_EXIM_TLS = """\
tls_advertise_hosts = *
tls_certificate = {pem}
tls_privatekey = {pem}
auth_advertise_hosts = ${{if eq{{$tls_in_cipher}}{{}}{{}}{{*}}}}
"""

_EXIM_AUTH = """
begin authenticators
plain:
  driver = plaintext
  public_name = PLAIN
  server_prompts = :
  server_condition = ${{if and{{ {{eq{{$auth2}}{{{user}}}}} \\
    {{eq{{$auth3}}{{${{readfile{{{secret}}}}}}}}} }} }}
  server_set_id = $auth2
login:
  driver = plaintext
  public_name = LOGIN
  server_prompts = Username:: : Password::
  server_condition = ${{if and{{ {{eq{{$auth1}}{{{user}}}}} \\
    {{eq{{$auth2}}{{${{readfile{{{secret}}}}}}}}} }} }}
  server_set_id = $auth1
"""


@contextmanager
def exim(place: Path, authority: Authority, next_hop: int) -> Iterator[int]:
    pem = place / "exim.pem"
    pem.write_bytes(authority.issue(["localhost"]).path.read_bytes())
    pem.chmod(0o644)  # Exim reads it as another user
    secret = place / "secret"
    secret.write_text(PASSWORD)
    words = {"pem": pem, "user": USER, "secret": secret}
    # Exim.start fills in the rest
    tls = _EXIM_TLS.format(**words).replace("{", "{{").replace("}", "}}")
    auth = _EXIM_AUTH.format(**words).replace("{", "{{").replace("}", "}}")
    config = EXIM.replace("tls_advertise_hosts =\n", tls)
    config = config.replace("accept_all:\n  accept\n", "accept_all:\n  accept authenticated = *\n")
    with Exim(folder(), config + auth).start(CELL, place, next_hop) as relay:
        yield relay.port


@contextmanager
def opensmtpd(place: Path, next_hop: int) -> Iterator[int]:
    """Run OpenSMTPD, in plain text; return its port.

    That of Debian 12 fails in every TLS handshake, because it is older than OpenSSL 3
    (github.com/OpenSMTPD/OpenSMTPD/issues/1239). It takes no password in plain text.
    """
    with OpenSmtpd(folder()).start(CELL, place, next_hop) as relay:
        yield relay.port
