"""An API of tests: `queued web` on a port of its own, and keys."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import psycopg

from pgmta_features.http_api.scopes import SCOPES
from pgmta_features.http_api.token import new_token
from tests.support.daemons import Config
from tests.web.web import Answer, Web


class ServedApi(Web):
    """`queued web` that serves the API alone."""

    audience: ClassVar[Config] = {"serves": ["api"]}

    def send(
        self,
        method: str,
        path: str,
        token: str = "",
        body: Any = None,
        *,
        source: str = "127.0.0.1",
        **headers: str,
    ) -> Answer:
        """Send a request with a key; a body that is no text or octets becomes JSON."""
        fields = {"Authorization": f"Bearer {token}"} if token else {}
        if body is not None and not isinstance(body, bytes | str):
            body, fields["Content-Type"] = json.dumps(body), "application/json"
        return self.ask(method, path, body, source=source, **fields, **headers)


def make_key(
    db: psycopg.Connection,
    name: str = "shop",
    scopes: str | list[str] = "",
    *,
    tenant: str = "",
    senders: list[str] | None = None,
    credentials: list[str] | None = None,
    priorities: tuple[int, int] = (5, 5),
    networks: list[str] | None = None,
    sees: str = "own",
    expires: str | None = None,
) -> str:
    """Make a key, with all scopes by default; return its token. `expires` is text of a time."""
    wanted = scopes.split() if isinstance(scopes, str) else scopes
    token = new_token()
    with db.transaction():
        db.execute(
            "INSERT INTO pgmta.api_keys (name, scopes, tenant, senders, credentials,"
            " priority_first, priority_last, networks, sees, expires_at)"
            " VALUES (%s, %s, %s, %s, %s, %s, %s, %s::cidr[], %s, %s::timestamptz)",
            (name, wanted or list(SCOPES), tenant,
             ["@example.org"] if senders is None else senders, credentials or [], *priorities,
             networks, sees, expires),
        )  # fmt: skip
        db.execute(
            "INSERT INTO pgmta.api_secrets (id, key, digest) VALUES (%s, %s, %s)",
            (token.secret_id, name, token.digest),
        )
    return str(token)


@contextmanager
def serving_api(folder: Path, uri: str, name: str = "api", **changes: Any) -> Iterator[ServedApi]:
    """Run an API; its log has to be free of errors at the end."""
    daemon = ServedApi(folder, name, uri, changes)
    try:
        daemon.ready()
        yield daemon
        if daemon.alive:
            daemon.stop()
        assert daemon.faults() == []
    finally:
        daemon.clean()
        print(daemon.story(100))
