"""kill -9 of queued and PostgreSQL while mail ends: each event is posted, and no other."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from pgmta_features.webhooks.signing import Secrets
from tests.features.providers.scripted_server import CUT, Got, said
from tests.features.webhooks.receiver import OK, Receiver
from tests.support.database import PrivateServer
from tests.support.nexthop import Do, Transaction
from tests.support.system import System
from tests.support.waiting import PATIENCE, take_time, until

MAILS = 40  # of a round
LEASE_S = 5
PAUSE_S = 1.0  # at most, before a kill
ADD = """
SELECT webhook_add('shop', %s, NULL, '{}', %s, NULL, 20, NULL, NULL)
"""


def mixed(asked: str, argument: str, _: Transaction | None) -> Do | None:
    """Bounce a fifth of the recipients."""
    return Do(line="550 5.1.1 no such user") if asked == "RCPT" and "bad" in argument else None


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_each_event_is_posted_and_no_other(
    private_system: System, private_server: PrivateServer, request: pytest.FixtureRequest,
    settings: dict[str, Any], known: Secrets, receiver: Receiver,
) -> None:  # fmt: skip
    system, rounds = private_system, int(request.config.getoption("--bounce-kills"))
    seed = random.SystemRandom().randrange(10**6)
    chance = random.Random(seed)
    taken: dict[str, str] = {}  # the documents of events that were accepted, by id

    def answer(got: Got) -> list[bytes]:
        if chance.random() < 0.1:
            return chance.choice(([CUT], said("500 x", b"", "Retry-After: 1")))
        for event in json.loads(got.body)["data"]:
            taken.setdefault(event["id"], event["type"])
        return OK

    receiver.answering["/"] = answer
    system.ask(ADD, receiver.url(), known.new_reference())
    queued = system.queued(system.hop(mixed), process={"lease": f"{LEASE_S}s"}, **settings)
    for number in range(rounds):
        for place in range(MAILS):
            kind = "bad" if place % 5 == 0 else "good"
            system.enqueue(f"{kind}{number}.{place}@c.example", on_failed="remove")
        take_time(chance.uniform(0.0, PAUSE_S))
        if number % 2:
            private_server.crash()
            private_server.start()
        else:
            queued.kill()
            queued.start()
    system.wait_empty(2 * PATIENCE)
    written = "SELECT commit || '-' || place AS id, 'mail.' || kind AS type FROM mail_events"
    expected = {row["id"]: row["type"] for row in system.ask(written)}
    print(f"seed {seed}: {rounds} kills, {len(expected)} events, {len(receiver.got())} requests")
    until(lambda: len(taken) >= len(expected), 2 * PATIENCE)
    assert taken == expected
    outcomes = system.ask("SELECT event FROM attempts")
    events = [kind for kind in expected.values() if kind != "mail.accepted"]
    assert len(events) == len(outcomes)
