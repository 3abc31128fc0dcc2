"""An installation with the faults of docs/operate/troubleshooting.md, planted as they come."""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Callable
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
import yaml
from click.testing import CliRunner

from queued.cli.doctor import server_checks
from queued.cli.queuectl import main
from tests.features.providers.scripted_server import said
from tests.support.certificates import Certificate
from tests.support.dkim import Keys
from tests.support.name_server import Zone, serving_names
from tests.support.nexthop import EXTENSIONS, at, hanging_at
from tests.support.provider import Provider
from tests.support.system import System
from tests.support.threaded_server import ThreadedServer
from tests.support.waiting import PATIENCE, until

SITES = (
    "dead", "smarthost", "certificate", "nodns", "grey", "full", "provider", "flooded", "slow",
)  # fmt: skip
"""Each is `NAME.example`, and its mail meets a fault with its next hop."""
FIRST = 1000042
"""The id of the message to the first of these."""
ZONE: Zone = {
    "nodns.example": {"MX": None},
    "smtp.certificate.example": {"A": ["127.0.0.1"]},
}
ANSWERS = {
    "grey": at("RCPT", "450 4.7.1 Greylisted, please try again in 300 seconds"),
    "full": at("RCPT", "452 4.2.2 The mailbox is full"),
    "flooded": at("MAIL", "421 4.7.0 Too many messages from your network"),
    "slow": hanging_at("RCPT"),
    "smarthost": at("AUTH", "535 5.7.8 Authentication credentials invalid"),
}


class Night:
    """One queued that has met the faults of all next hops."""

    def __init__(self, system: System, stack: ExitStack) -> None:
        self.system = system
        self.folder = system.folder
        self._stack = stack
        self._keys = Keys(self.folder)
        changes = {**self._settings(), "shaping": str(self._shaping())}
        for number, site in enumerate(SITES):
            self._send(FIRST + number, f"bob@{site}.example")
        self._send(
            FIRST + 20,
            *(f"c{n}@flooded.example" for n in range(60)),
            sender="news@customer.example",
        )
        self.queued = system.queued(**changes)
        (self.folder / "etc").mkdir()
        (self.folder / "etc" / "queued.yaml").write_text(self.queued.path.read_text())

        def tried() -> bool:
            seen = {each["domain"] for each in system.attempts()}
            return seen >= {f"{site}.example" for site in SITES if site != "slow"}

        until(tried, PATIENCE, describe="attempts")

    def _send(self, number: int, *recipients: str, **columns: Any) -> None:
        self.system.ask(f"ALTER SEQUENCE message_ids INCREMENT 1 RESTART {number}")
        assert self.system.enqueue(*recipients, **columns) == number

    def _settings(self) -> dict[str, Any]:
        names = self._stack.enter_context(serving_names(ZONE))
        refusal = said("404 Not Found")
        self._receiver = self._stack.enter_context(ThreadedServer(lambda _: refusal))
        key = self.folder / "webhook.key"
        key.write_text(secrets.token_hex(32))
        key.chmod(0o600)
        authority = Certificate.root()
        self._certificate = authority.issue("smtp.certificate.example", days=(-90, -1)).server(
            self.folder
        )
        return {
            "routes": {"*": "mx"},
            "retry": {"intervals": ["1h"]},
            "delivery": {
                "dns": {"servers": [names.where], "timeout": "300ms"},
                "tls": {"ca": str(authority.files(self.folder)[0])},
            },
            "signing": {"keys": [self._keys.entry("s2027")]},
            "webhooks": {"keys": [str(key)], "networks": ["127.0.0.0/8"]},
        }

    def _shaping(self) -> Path:
        secret = self.folder / "smarthost.password"
        secret.write_text("wrong\n")
        secret.chmod(0o600)
        refusal = said("401 Unauthorized", b'{"error": "The key is not valid"}')
        provider = self._stack.enter_context(Provider(lambda _: [*refusal]))
        parameters = {"url": provider.url, "json": {"to": "{{recipient}}"}, "error": "error"}
        routes: list[dict[str, Any]] = [
            {
                "name": "provider",
                "domain": "provider.example",
                "transport": "http",
                "parameters": parameters,
            }
        ]
        for name in SITES:
            if name in ("provider", "nodns"):
                continue
            extensions = (*EXTENSIONS, "AUTH PLAIN") if name == "smarthost" else EXTENSIONS
            hop = self.system.hop(
                ANSWERS.get(name, at("")),
                extensions,
                self._certificate if name == "certificate" else None,
            )
            if name == "dead":
                hop.stop()
            route: dict[str, Any] = {"name": name, "domain": f"{name}.example", "to": hop.target}
            if name == "smarthost":
                route |= {"login": "relay", "tls": "none"}
            if name == "certificate":
                route |= {"to": f"smtp.certificate.example:{hop.port}", "tls": "verify"}
            routes.append(route)
        file = self.folder / "shaping.yaml"
        logins = {"relay": {"user": "shop", "password_file": secret.name}}
        file.write_text(yaml.safe_dump({"logins": logins, "routes": routes}))
        return file

    # -- faults of one section each; the page has their order --

    def faults(self, patch: pytest.MonkeyPatch) -> dict[str, Callable[[], object]]:
        """The functions that plant what the next hops do not, by the heading of the section."""
        return {
            "An API key leaked": self._leak,
            "A destination is suspended": self._suspend,
            "A recipient is suppressed": self._suppress,
            "A rule fails on a row": self._odd_rule,
            "Mail was accepted and is never due": self._hold,
            "Activation mail does not come": self._token_without_collector,
            "A webhook endpoint fails or lags": self._webhook,
            "A quarantine grows": self._quarantine,
            "Our own certificate has expired": self._own_certificate,
            "The disk is full": lambda: self._full_disk(patch),
            "No worker runs": self._kill,
            "Events do not come": self._events,
            "Somebody keeps vacuum from its work": lambda: self._open_transaction(patch),
            "A session locks the queue": self._lock,
            "The database is read-only": self._read_only,
            "The database is gone": self._gone,
        }

    def _do(self, *words: str) -> None:
        result = CliRunner().invoke(main, words)
        assert result.exit_code == 0, result.output

    def _leak(self) -> None:
        self._do("apikey", "new", "shop", "--scope", "send", "--sender", "@a.example")
        self.system.ask("UPDATE api_secrets SET used_at = now(), used_from = '203.0.113.9'")
        self.system.ask(
            "INSERT INTO webhooks (name, viewer, url, secret, batch, cursor, state) VALUES"
            " ('events', 'key:shop', 'https://thief.example/', 'file:a', 1, '1.0.0', 'suspended')"
        )
        later = datetime.now(UTC) + timedelta(hours=1)
        self._send(FIRST + 24, "bob@leaked.example", next_attempt=later)
        self.system.ask("UPDATE messages SET submitted_by = 'key:shop' WHERE id = %s", FIRST + 24)

    def _suspend(self) -> None:
        self._do("suspend", "--domain", "suspended.example", "--reason", "ticket 4711")
        later = datetime.now(UTC) + timedelta(hours=1)
        self._send(FIRST + 28, "bob@suspended.example", next_attempt=later)

    def _suppress(self) -> None:
        self._do("suppression", "add", "bob@silent.example", "--reason", "complained",
                 "--source", "message 123")  # fmt: skip
        self.system.ask("SELECT submit_mail('a@a.example', '{bob@silent.example}', body => 'x')")

    def _odd_rule(self) -> None:
        self._do("rule", "add", "odd", "--where", "(metadata->>'n')::int > 3", "--reason", "large")
        self._send(FIRST + 38, "bob@odd.example", metadata='{"n": "alpha"}')
        held = "SELECT id FROM queue WHERE message_id = %s AND status = 'HOLD'"
        until(lambda: self.system.ask(held, FIRST + 38), describe="the rule")

    def _token_without_collector(self) -> None:
        self._do("lifecycle", "install")
        self.system.ask("INSERT INTO lifecycle.accounts (email, login) VALUES ('b@b.example', 'b')")
        self.system.ask("UPDATE lifecycle.tokens SET created_at = created_at - 300")
        active = "('c@b.example', 'c', 'active')"
        self.system.ask(f"INSERT INTO lifecycle.accounts (email, login, status) VALUES {active}")
        self.system.ask(
            "INSERT INTO lifecycle.tokens (action, account, created_at, expires_at)"
            " SELECT 'password_recovery', id, lifecycle.epoch() - 3600, lifecycle.epoch() - 2700"
            " FROM lifecycle.accounts WHERE login = 'c'"
        )

    def _hold(self) -> None:
        self._send(FIRST + 48, "bob@held.example", status="HOLD", hold_reason="ticket 4712")

    def _webhook(self) -> None:
        self._do("webhook", "remove", "events")  # of the key that leaked
        self._do("webhook", "add", "shop", self._receiver.url_of("/mail-events"))
        self._send(FIRST + 53, "bob@held.example", status="HOLD", hold_reason="ticket 4713")
        failing = "SELECT id FROM webhooks WHERE state = 'failing'"
        until(lambda: self.system.ask(failing), describe="the webhook")

    def _quarantine(self) -> None:
        self._do("webhook", "remove", "shop")  # the fault before
        names = [f"c{n}@suspect.example" for n in range(3)]
        self._send(FIRST + 58, *names, status="HOLD", hold_reason="virus",
                   metadata='{"_quarantineid": "suspects"}')  # fmt: skip

    def _own_certificate(self) -> None:
        expired = Certificate.root().issue("mx.example", days=(-90, -1))
        certificate, key = expired.files(self.folder)
        smtpd = {
            "environment": {"database": {"uri": self.system.uri}, "hostname": "mx.example"},
            "listen": [{"address": "127.0.0.1", "port": 2599}],
            "certificates": [{"certificate": str(certificate), "key": str(key)}],
        }
        (self.folder / "etc" / "smtpd.yaml").write_text(yaml.safe_dump(smtpd))

    def _full_disk(self, patch: pytest.MonkeyPatch) -> None:
        (self.folder / "etc" / "smtpd.yaml").unlink()  # the fault before
        (disk := self.folder / "maildrop").mkdir()
        patch.setattr("queued.cli.doctor.doctor._MAILDROP", disk)
        mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
        if subprocess.run(mount, capture_output=True, check=False).returncode:  # only root may
            small = SimpleNamespace(f_bavail=1, f_frsize=1, f_blocks=99, f_files=1, f_favail=1)
            patch.setattr(os, "statvfs", lambda _: small)
            return
        self._stack.callback(subprocess.run, ["umount", "-l", str(disk)], check=True)
        with suppress(OSError), (disk / "filler").open("wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass

    def _kill(self) -> None:
        """Kill queued, and let an hour pass for the tables."""
        self.queued.kill()
        for table in ("daemons", "workers"):
            self.system.ask(f"UPDATE {table} SET seen_at = now() - interval '1 hour'")

    def _events(self) -> None:
        """The table takes one event of a kind, and nobody numbers."""
        self.system.ask("CREATE SCHEMA shop")
        columns = "type text UNIQUE, at timestamptz, message_id bigint, recipient text"
        columns = f"id text PRIMARY KEY, {columns}, document jsonb"
        self.system.ask(f"CREATE TABLE shop.mail_events ({columns})")
        self._do("events", "table", "shop.mail_events")
        for number in (FIRST + 68, FIRST + 69):
            self._send(number, "bob@event.example")
        self.system.ask("UPDATE event_retries SET noted_at = now() - interval '1 hour'")
        self.system.ask("UPDATE event_commits SET at = now() - interval '1 hour'")

    def _open_transaction(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(server_checks, "_HELD_S", 0.0)
        session = self._stack.enter_context(psycopg.connect(self.system.uri))
        session.execute("SELECT pg_current_xact_id()")

    def _lock(self) -> None:
        uri = psycopg.conninfo.make_conninfo(self.system.uri, application_name="psql")
        self._locker = self._stack.enter_context(psycopg.connect(uri))
        self._locker.execute("LOCK TABLE pgmta.queue")

    def _read_only(self) -> None:
        self._locker.close()
        name = psycopg.conninfo.conninfo_to_dict(self.system.uri)["dbname"]
        self.system.ask(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')

    def _gone(self) -> None:
        file = self.folder / "etc" / "queued.yaml"
        settings = yaml.safe_load(file.read_text())
        settings["environment"]["database"]["uri"] = "postgresql://pgmta@127.0.0.1:1/pgmta"
        file.write_text(yaml.safe_dump(settings))
