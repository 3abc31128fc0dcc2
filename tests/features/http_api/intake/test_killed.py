"""The API and PostgreSQL are killed under load: each 202 is delivered, and each request one mail.

Option --api-rounds (CONTRIBUTING.md).
"""

from __future__ import annotations

import http.client
import json
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.features.http_api.intake.test_sending import multipart
from tests.features.http_api.served import ServedApi, make_key
from tests.support.daemons import Queued
from tests.support.database import PrivateServer
from tests.support.nexthop import NextHop
from tests.support.system import System
from tests.support.waiting import until

CLIENTS = 6
SECONDS = 1.5
"""Seconds of load of a round."""

PATIENCE = 60.0
OPEN_STATUSES = (409, 429, 503)
"""After these a client repeats its request."""


class Shop:
    """Programs that send mail, and repeat each request with its key until it has an answer."""

    def __init__(self, api: ServedApi, token: str) -> None:
        self.api, self.token = api, token
        self.stopping = threading.Event()
        self.answered: dict[str, list[str]] = {}
        """The ids of each mail, by the address of its recipient: one of each answer."""
        self.wrong: list[str] = []
        self.repeated = 0
        self._lock = threading.Lock()
        self._number = 0

    def _next(self) -> int:
        with self._lock:
            self._number += 1
            return self._number

    def run(self, seed: int) -> None:
        """Send until the end."""
        chance = random.Random(seed)
        while not self.stopping.is_set():
            number, kind = self._next(), chance.choice(("one", "one", "batch", "files"))
            path, body, fields, recipients = request(number, kind)
            fields |= {"Authorization": f"Bearer {self.token}", "Idempotency-Key": f"k{number}"}
            for again in range(1000):
                if found := self._try(path, body, fields):
                    break
                self.repeated += 1
                threading.Event().wait(0.05 if again else 0.0)
            else:
                self.wrong.append(f"{number}: no answer")
                return
            status, answer = found
            if status != 202:
                self.wrong.append(f"{number}: {status} {answer!r}")
                continue
            members = json.loads(answer)
            for recipient, each in zip(recipients, members.get("data", [members]), strict=True):
                with self._lock:
                    self.answered.setdefault(recipient, []).append(each["id"])

    def _try(self, path: str, body: bytes, fields: dict[str, str]) -> tuple[int, bytes] | None:
        """The answer; None if there is none, or one after which the request is repeated."""
        client = http.client.HTTPConnection("127.0.0.1", self.api.port, 10)
        try:
            client.request("POST", path, body, fields)
            answer = client.getresponse()
            read = answer.read()
        except (OSError, http.client.HTTPException):
            return None
        finally:
            client.close()
        return None if answer.status in OPEN_STATUSES else (answer.status, read)


def request(number: int, kind: str) -> tuple[str, bytes, dict[str, str], list[str]]:
    """Path, body, header and the recipients of a request."""

    def mail(place: int) -> dict[str, Any]:
        return {"from": "shop@example.org", "to": [f"r{number}-{place}@good.example"], "body": "x"}

    fields = {"Content-Type": "application/json"}
    if kind == "batch":
        mails = [mail(place) for place in range(20)]
        recipients = [each["to"][0] for each in mails]
        return "/v1/messages/batch", json.dumps({"messages": mails}).encode(), fields, recipients
    body = json.dumps(mail(0)).encode()
    if kind == "files":
        body, fields = multipart(
            ('name="message"', "application/json", body),
            ('name="f"; filename="a"', "text/plain", b"0123456789" * 20_000),
        )
    return "/v1/messages", body, fields, mail(0)["to"]


@pytest.fixture
def rounds(request: pytest.FixtureRequest) -> int:
    """Number of kills."""
    return int(request.config.getoption("--api-rounds"))


@pytest.fixture
def system(tmp_path: Path, private_server: PrivateServer) -> Iterator[System]:
    """A relay on a server that the test may crash."""
    system = System(tmp_path, private_server.uri)
    yield system
    system.clean()


@pytest.fixture
def served(tmp_path: Path, private_server: PrivateServer) -> Iterator[ServedApi]:
    """An API on that server."""
    folder = tmp_path / "api"
    folder.mkdir()
    daemon = ServedApi(folder, "api", private_server.uri, {})
    try:
        yield daemon.ready()
    finally:
        daemon.clean()
        print(daemon.story(60))


def kill(victim: str, server: PrivateServer, served: ServedApi) -> None:
    """Kill one of them, or all connections, and start it again."""
    if victim == "api":
        served.kill()
        count = len(served.events("ready")) + 1
        served.start()
        served.wait_log("ready", count)
    elif victim == "postgres":
        server.crash()
        server.start()
    else:
        with psycopg.connect(server.uri, autocommit=True) as db:
            db.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name ~ '^pgmta api (requests|uploads|keys)'"
            )


def delivered(hop: NextHop) -> list[str]:
    """The recipients of all transactions."""
    return [each for transaction in hop.transactions for each in transaction.recipients]


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_what_is_answered_is_delivered_once(
    system: System, private_server: PrivateServer, served: ServedApi, rounds: int
) -> None:
    seed = random.SystemRandom().randrange(10**6)
    print("seed", seed)
    chance = random.Random(seed)
    hop = system.hop()
    worker: Queued = system.queued(hop, process={"lease": "3s"}, retry={"intervals": ["1s"]})
    with psycopg.connect(private_server.uri) as db:
        shop = Shop(served, make_key(db))
    clients = [threading.Thread(target=shop.run, args=[seed + n]) for n in range(CLIENTS)]
    for each in clients:
        each.start()
    try:
        for number in range(rounds):
            threading.Event().wait(chance.uniform(0.2, SECONDS))
            victim = chance.choice(("api", "postgres", "connections"))
            print(number, victim, len(shop.answered), flush=True)
            kill(victim, private_server, served)
    finally:
        shop.stopping.set()
        for each in clients:
            each.join(PATIENCE)
    assert shop.wrong == []
    assert worker.alive

    def over() -> bool:
        return [*system.ask("SELECT count(*) AS n FROM queue")] == [{"n": 0}]

    until(over, PATIENCE)
    kept = delivered(hop)
    # an outcome that was unknown may have made a second copy, of the same message
    with psycopg.connect(private_server.uri) as db:
        messages: dict[str, list[str]] = dict(
            db.execute(
                "SELECT recipient, array_agg(DISTINCT message_id::text) FROM attempts GROUP BY 1"
            ).fetchall()
        )
    assert messages == shop.answered, {
        name: (messages.get(name), shop.answered.get(name))
        for name in messages.keys() | shop.answered.keys()
        if messages.get(name) != shop.answered.get(name)
    }
    assert set(kept) == set(shop.answered)
    print(f"{rounds} kills, {len(messages)} mails, {shop.repeated} repetitions")
    assert len(messages) > rounds * 10
    assert shop.repeated
