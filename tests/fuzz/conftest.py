"""One smtpd with all listeners, on real sockets with a real database, for each module."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import uvloop

from smtpd.commands.listener import SmtpListener
from smtpd.config import SmtpdConfig
from smtpd.server.server import Server
from smtpd.session.connection import Connection
from smtpd.session.opening import open_connection
from smtpd.tls.contexts import ContextSet
from tests.support.certificates import Certificate
from tests.support.database import fresh_database
from tests.support.users import add_user
from tests.support.waiting import PATIENCE, until

LISTENERS: dict[str, dict[str, Any]] = {
    "relay": {},
    "plain": {"role": "internal", "tls": "none"},
    "submission": {"role": "submission"},
    "implicit": {"role": "submission", "tls": "implicit"},
    "proxied": {"early": "allow", "proxy": ["127.0.0.1"], "auth": "offered"},
}
USER, PASSWORD = "ann@example.org", "secret"


@dataclass
class Running:
    """An smtpd in a thread."""

    uri: str
    ports: dict[str, int] = field(default_factory=dict)
    faults: list[Exception] = field(default_factory=list)
    server: Any = None

    @property
    def connections(self) -> int:
        return len(self.server._members)

    def idle(self) -> None:
        """Wait until it has no connection, and check that nothing of them is left."""
        until(lambda: not self.connections, describe="all sessions over")
        until(lambda: not self.server.memory.used, describe="their memory given back")
        assert not self.faults, self.faults


@pytest.fixture(scope="module")
def running(
    request: pytest.FixtureRequest, server: str, template: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Running]:  # fmt: skip
    certificate, key = Certificate.root().issue("mx.example").files(tmp_path_factory.mktemp("tls"))
    settings = SmtpdConfig.model_validate({
        "environment": {"hostname": "mx.example"},
        "submission": {"check_from": False},
        "listen": list(LISTENERS.values()),
        "certificates": [{"certificate": str(certificate), "key": str(key)}],
        "relay": {"networks": [], "domains": ["example.org"]},
        "limits": {"connections": 5000, "connections_per_address": 5000, "errors": 1000,
                   "new_connections_per_address": 1 << 40},
        "auth": {"failures": {"address": 10**6, "user": 10**6}},
    })  # fmt: skip
    with fresh_database(server, template) as uri, pytest.MonkeyPatch.context() as patched:
        add_user(uri, USER, PASSWORD, any_sender=True)
        run = Running(uri)
        fail = Connection.fail

        def failed(self: Connection, error: Exception) -> None:
            run.faults.append(error)
            fail(self, error)

        patched.setattr(Connection, "fail", failed)
        patched.setattr("smtpd.commands.tally.MAX_USELESS_COMMANDS", 1000)
        started, stop = threading.Event(), threading.Event()

        async def serve() -> None:
            loop = asyncio.get_running_loop()
            shared = run.server = Server(settings, uri)
            shared.start()
            contexts = ContextSet(settings).load(Path("smtpd.yaml")).contexts
            servers = []
            for name, each, context in zip(LISTENERS, settings.listen, contexts, strict=True):
                listener = SmtpListener(settings, each, contexts=context)
                made = partial(open_connection, shared, listener)
                servers.append(await loop.create_server(made, "127.0.0.1", 0, backlog=2048))
                run.ports[name] = servers[-1].sockets[0].getsockname()[1]
            started.set()
            await loop.run_in_executor(None, stop.wait)
            for one in servers:
                one.close()
            assert await shared.stop(PATIENCE)

        thread = threading.Thread(target=lambda: uvloop.run(serve()))
        thread.start()
        assert started.wait(PATIENCE)
        try:
            yield run
        finally:
            stop.set()
            thread.join()
