"""kill -9 of queued around the commit of a hard bounce: who is suppressed gets no attempt more."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.support.nexthop import NextHop, at
from tests.support.system import System
from tests.support.waiting import PATIENCE, take_time, until

ADDRESSES = 5  # of a round
LEASE_S = 5
PAUSE_S = 0.05  # at most, between the first bounce of a round and the kill


def asked(hop: NextHop) -> Counter[str]:
    """How often the next hop was asked for each recipient."""
    return Counter(address for each in list(hop.transactions) for address in each.asked)


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_no_attempt_after_the_commit_of_a_bounce(
    system: System, request: pytest.FixtureRequest
) -> None:
    rounds = int(request.config.getoption("--bounce-kills"))
    seed = random.SystemRandom().randrange(10**6)
    chance = random.Random(seed)
    hop = system.hop(at("RCPT", "550 5.1.1 User unknown"))
    queued = system.queued(hop, process={"lease": f"{LEASE_S}s"})
    known: dict[str, int] = {}  # who is suppressed, and how often the hop was asked before
    stopped: set[str] = set()  # whose second mail came after the suppression
    undecided = 0  # addresses that a kill left without a suppression, although the hop had bounced
    for number in range(rounds):
        people = [f"r{number}.{place}@b.example" for place in range(ADDRESSES)]
        for address in people:
            system.enqueue(address, on_failed="remove")
        hop.wait(lambda people=people: asked(hop).keys() & set(people))  # type: ignore[misc]
        take_time(chance.uniform(0.0, PAUSE_S))
        queued.kill()
        # a commit that was under way may still succeed
        until(lambda: system.ask("SELECT count(*) AS left FROM pg_stat_activity WHERE datname ="
                                 " current_database() AND application_name LIKE 'pgmta%%'")
              == [{"left": 0}])  # fmt: skip
        before = asked(hop)
        rows = system.ask("SELECT address FROM suppressions")
        known |= {row["address"]: before[row["address"]] for row in rows
                  if row["address"] not in known}  # fmt: skip
        stopped |= known.keys() & set(people)
        undecided += sum(before[address] > 0 for address in people if address not in known)
        for address in people:
            system.enqueue(address, on_failed="remove")
        queued.start()
    system.wait_empty(PATIENCE + LEASE_S)
    found = asked(hop)
    print(f"seed {seed}: {rounds} kills, {len(stopped)} suppressed before it, {undecided} after")
    assert {address: found[address] for address in known} == known
    ended = Counter(row["recipient"] for row in system.attempts() if row["event"] == "suppressed")
    assert {address for address in stopped if ended[address] != 1} == set()
    number_of = "SELECT count(*) AS number FROM suppressions WHERE reason = 'bounced'"
    assert system.ask(number_of) == [{"number": rounds * ADDRESSES}]
