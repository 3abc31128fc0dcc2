"""A `queued web` of tests, and a client that sees what it answers."""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self
from urllib.parse import urlencode

import psycopg

from pgmta.compose.token import KeyRing, Purpose, TokenKey
from tests.features.lifecycle.tokens import KEYS
from tests.support.daemons import HOSTNAME, NOTHING, Config, Daemon, Environment, merge
from tests.support.waiting import free_port

RINGS = {
    purpose: KeyRing(purpose, [TokenKey("k1", bytes.fromhex(KEYS[purpose]))]) for purpose in Purpose
}
RETURN = "http://localhost:9/password?shop=1"
"""The page to which a recovery returns."""


class Answer(NamedTuple):
    """An answer of the server."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def members(self) -> Any:
        return json.loads(self.body)


def write_keys(folder: Path, **keys: str) -> Config:
    """Write key files, and return the section `tokens` that names them."""
    section = {}
    for purpose, digits in {**KEYS, **keys}.items():
        file = folder / f"{purpose}.key"
        file.touch(0o600)
        file.write_text(f"{digits}\n")
        section[purpose] = [file.name]
    return section


class Web(Daemon):
    """`queued web`, on a free port."""

    module = "queued"
    command = "web"
    audience: ClassVar[Config] = {}

    def __init__(
        self, folder: Path, name: str, uri: str, changes: Config, more: Environment = NOTHING
    ) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        base = {
            "environment": {"hostname": HOSTNAME, "database": {"uri": uri}},
            "listen": [{"address": "127.0.0.1", "port": self.port, **self.audience}],
            "public": {"url": self.url},
            "tokens": write_keys(folder),
            "log": {"format": "json"},
        }
        super().__init__(folder, name, merge(base, changes), more)

    def ready(self) -> Self:
        """Wait until it listens."""
        self.wait_log("ready")
        return self

    def link(self, purpose: Purpose, secret: bytes, code: str = "") -> str:
        """Return the link of a token, as its mail has it."""
        return f"{self.url}{purpose.path}?token={RINGS[purpose].sign(secret, code)}"

    @contextmanager
    def connect(self, source: str = "127.0.0.1") -> Iterator[http.client.HTTPConnection]:
        """Open a connection from an address of this host."""
        client = http.client.HTTPConnection("127.0.0.1", self.port, 20, source_address=(source, 0))
        try:
            yield client
        finally:
            client.close()

    def ask(
        self,
        method: str,
        path: str,
        body: str | bytes | None = None,
        *,
        source: str = "127.0.0.1",
        **headers: str,
    ) -> Answer:
        """Send a request over its own connection; `_` stands for - in names of fields."""
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        with self.connect(source) as client:
            client.request(method, path, body, fields)
            answer = client.getresponse()
            return Answer(
                answer.status,
                {name.lower(): value for name, value in answer.getheaders()},
                answer.read(),
            )

    def call(
        self, what: str, purpose: Purpose, token: str, code: str = "", action: str = "", **more: str
    ) -> Answer:
        """Ask the endpoint `what`: verify or consume."""
        optional = {"code": code, "action": action}
        order = {"purpose": purpose, "token": token}
        order |= {name: value for name, value in optional.items() if value}
        return self.ask(
            "POST", f"/v1/tokens/{what}", json.dumps(order), Content_Type="application/json", **more
        )

    def post(self, path: str, token: str, code: str = "", **more: str) -> Answer:
        """Press the button of a page."""
        form = urlencode({"token": token, "code": code})
        kind = "application/x-www-form-urlencoded"
        return self.ask("POST", path, form, Content_Type=kind, **more)


def secret_of(db: psycopg.Connection, login: str, action: str = "activation") -> tuple[bytes, str]:
    """Return secret and code of the newest token of an account."""
    row = db.execute(
        "SELECT t.secret, coalesce(t.code, '') FROM lifecycle.tokens AS t"
        " JOIN lifecycle.accounts AS a ON a.id = t.account"
        " WHERE a.login = %s AND t.action::text = %s ORDER BY t.id DESC LIMIT 1",
        (login, action),
    ).fetchone()
    assert row
    return bytes(row[0]), str(row[1])


def recover(db: psycopg.Connection, login: str) -> tuple[bytes, str]:
    """Make a token of recovery for an account; return secret and code."""
    db.execute("UPDATE lifecycle.accounts SET status = 'active' WHERE login = %s", (login,))
    db.execute("SELECT lifecycle.recover(%s)", (login,))
    return secret_of(db, login, "password_recovery")


def return_to(db: psycopg.Connection, url: str, action: str = "password_recovery") -> None:
    """Send browsers to a URL after an action."""
    db.execute("UPDATE lifecycle.actions SET returns_to = %s WHERE name = %s", (url, action))


def forged() -> str:
    """Return a token with the signature of another key."""
    return KeyRing(Purpose.ACTIVATE, [TokenKey("x", os.urandom(32))]).sign(os.urandom(32))


@contextmanager
def serving(
    folder: Path, uri: str, variables: Environment = NOTHING, **changes: Any
) -> Iterator[Web]:
    """Run a server; its log has to be free of errors at the end."""
    daemon = Web(folder, "web", uri, changes, variables)
    try:
        yield daemon.ready()
        if daemon.alive:
            daemon.stop()
        assert daemon.faults() == []
    finally:
        daemon.clean()
        print(daemon.story(100))
