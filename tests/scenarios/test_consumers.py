"""Several consumers, a late one, and many mails by one call: the proofs of seed 002."""

from __future__ import annotations

import email.policy
import time

import pytest
from psycopg.types.json import Jsonb

from tests.support.nexthop import NextHop, holding_at
from tests.support.system import System
from tests.support.waiting import SLACK, take_time


def submit(system: System, numbers: range) -> list[int]:
    """Submit a mail of each number by one call; return the message ids."""
    mails = [
        {"sender": "shop@a.example", "to": [f"r{n}@d{n % 7}.example"], "subject": f"Order {n}",
         "body": "Thank you.\n"}
        for n in numbers
    ]  # fmt: skip
    (answer,) = system.ask("SELECT * FROM submit_mails(%s)", Jsonb(mails))
    assert answer["problems"] is None
    return list(answer["ids"])


def arrived(system: System, hop: NextHop) -> list[int]:
    """The message ids of all copies at the next hop, by their field Message-ID."""
    log = system.ask("SELECT message_id_header AS field, message_id, event, late FROM attempts")
    assert {(entry["event"], entry["late"]) for entry in log} == {("delivered", None)}
    ids = {entry["field"]: entry["message_id"] for entry in log}
    assert len(ids) == len(log)
    read = email.policy.default.header_source_parse
    found = []
    for copy in hop.kept:
        lines = (copy.content or b"").decode().split("\r\n\r\n")[0].split("\r\n")
        fields = dict(read([line]) for line in lines if line.startswith("Message-ID:"))
        found.append(ids[fields["Message-ID"]])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 4, 8])
def test_each_mail_arrives_once_from_several_processes(system: System, processes: int) -> None:
    hop = system.hop(holding_at("end of data"))
    for _ in range(processes):
        system.queued(hop, workers=[{"name": "deliver", "concurrency": 50, "batch": 10}])
    ids = [number for n in range(0, 1000, 100) for number in submit(system, range(n, n + 100))]
    system.wait_queue(  # each has rows
        lambda rows: len({row["lease_owner"] for row in rows} - {None}) == processes
    )
    hop.release()
    system.wait_empty()
    assert sorted(arrived(system, hop)) == sorted(ids)
    assert len(set(ids)) == 1000
    (counts,) = system.ask("SELECT sum(settled)::integer AS settled FROM outcome_counts")
    assert counts == {"settled": 1000}


@pytest.mark.slow
def test_a_late_consumer_has_the_mail_of_five_seconds_at_once(system: System) -> None:
    hop = system.hop()
    ids = []
    for n in range(0, 1000, 20):
        ids += submit(system, range(n, n + 20))
        take_time(0.1)
    assert hop.kept == []
    began = time.monotonic()
    queued = system.queued(hop)
    ready = time.monotonic()
    hop.wait_kept(990)
    now = time.monotonic()
    print(
        f"99 % of 1,000 mails {now - began:.3f} s after the start, {now - ready:.3f} s after ready"
    )
    assert now - ready < 1 + SLACK
    system.wait_empty()
    assert sorted(arrived(system, hop)) == sorted(ids)
    queued.stop()


@pytest.mark.slow
def test_ten_thousand_mails_and_one_by_one_call(system: System) -> None:
    hop = system.hop()
    system.queued(hop)
    ids = submit(system, range(10_001))
    assert len(set(ids)) == 10_001
    hop.wait_kept(10_001)
    system.wait_empty()
    assert sorted(arrived(system, hop)) == sorted(ids)
