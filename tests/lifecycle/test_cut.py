"""A collector whose packets to PostgreSQL are lost in its network namespace."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from bench.apart import across
from bench.helper import Helper
from bench.namespaces import Namespaces, possible
from tests.lifecycle.tokens import add_accounts, settings
from tests.support.daemons import Queued
from tests.support.rows import fetch
from tests.support.system import System
from tests.support.waiting import until

NOBODY = "02:00:00:00:00:01"
MAILS = "SELECT count(*) FROM pgmta.messages"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.needs("root"),
    pytest.mark.skipif(not possible(), reason="needs network namespaces: Linux, root, iproute2"),
]


class Cable:
    """The link of the consumer's namespace to PostgreSQL, which a proxy without delay reaches."""

    def __init__(self, spaces: Namespaces, uri: str, port: int) -> None:
        self._words = spaces.words("consumer")
        self._server = spaces.addresses["consumer"]
        self._client = f"{self._server.rpartition('.')[0]}.1"
        self._database = ["ip", "netns", "exec", spaces.database]
        self.uri = across(uri, self._server, port)

    def cut(self) -> None:
        """Lose all packets of both directions: they go to a hardware address that nobody has."""
        for words, address, link in (
            (self._words, self._server, "net"), (self._database, self._client, "consumer"),
        ):  # fmt: skip
            neighbour = f"ip neigh replace {address} lladdr {NOBODY} dev {link} nud permanent"
            subprocess.run([*words, *neighbour.split()], check=True)

    def mend(self) -> None:
        """Let packets arrive again."""
        for words, address, link in (
            (self._words, self._server, "net"), (self._database, self._client, "consumer"),
        ):  # fmt: skip
            subprocess.run([*words, *f"ip neigh del {address} dev {link}".split()], check=True)

    def queued(self, folder: Path, **changes: Any) -> Queued:
        """Start a queued in the namespace."""
        apart = type("QueuedApart", (Queued,), {"before": tuple(self._words)})
        daemon: Queued = apart(folder, "apart", self.uri, changes)
        return daemon.ready()


@pytest.fixture
def cable(database: str, tmp_path: Path) -> Iterator[Cable]:
    """A cable to the database of the test."""
    upstream = conninfo_to_dict(database)
    with Namespaces() as spaces:
        config = {
            "addresses": list(spaces.addresses.values()), "namespace": spaces.database,
            "upstream": [str(upstream["host"]), str(upstream.get("port") or 5432)], "delay": 0.0,
        }  # fmt: skip
        proxy = Helper("delay_line", config, tmp_path / "delay_line.log")
        try:
            ports = dict(zip(spaces.addresses, proxy.wait("ready")["ports"], strict=True))
            yield Cable(spaces, database, ports["consumer"])
        finally:
            proxy.close()


@pytest.mark.parametrize("healthcheck", [2, 4])
def test_lost_packets_are_noticed_and_the_collector_comes_back(
    accounts: psycopg.Connection, system: System, cable: Cable, tmp_path: Path, healthcheck: int
) -> None:
    config = settings(tmp_path, timeout="1s", healthcheck=f"{healthcheck}s")
    daemon = cable.queued(tmp_path, workers=[{"name": "none", "where": "false"}], **config)
    system.daemons.append(daemon)
    daemon.wait_log("waits for tokens")
    add_accounts(accounts, 5, "before")
    until(lambda: fetch(accounts, MAILS) == (5,))
    cable.cut()
    began = time.monotonic()
    add_accounts(accounts, 25, "during")
    found = daemon.wait_log("connects again", timeout=30)
    seconds = time.monotonic() - began
    assert seconds <= healthcheck + 5, found
    assert fetch(accounts, MAILS) == (5,)
    cable.mend()
    until(lambda: fetch(accounts, MAILS) == (30,))
    assert fetch(accounts, "SELECT count(DISTINCT recipient) FROM pgmta.queue") == (30,)
    daemon.stop()
    print(f"found after {seconds:.1f} s")
