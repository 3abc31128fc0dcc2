"""PostgreSQL crashes and comes back: no daemon needs a restart, no mail is lost or doubled."""

from __future__ import annotations

import threading
import time

import pytest

from tests.support.daemons import Smtpd
from tests.support.database import PrivateServer
from tests.support.nexthop import Do, as_usual, holding_at
from tests.support.submit import Client, Reply, post
from tests.support.system import System
from tests.support.waiting import SLACK, take_time, until

MAIL = b"Subject: x\r\n\r\nx\r\n"
RETURN = 5.0 + SLACK  # seconds within which everything works again: long before leases run out


class Pump:
    """A client that sends one message after the other until `stop` is set."""

    def __init__(self, smtpd: Smtpd, name: str) -> None:
        self.replies: list[tuple[str, Reply]] = []
        self._stop = threading.Event()
        self._smtpd = smtpd
        self._name = name
        self.problem: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            with self._smtpd.connect() as client:
                while not self._stop.is_set():
                    recipient = f"{self._name}.{len(self.replies)}@hop.example"
                    reply = client.send("a@example.org", [recipient], MAIL)
                    self.replies.append((recipient, reply))
        except BaseException as error:
            self.problem = error

    def wait(self, code: int, after: int = 0) -> None:
        """Wait until a reply with that code has come since the first `after` of them."""
        until(
            lambda: self.problem or any(r.code == code for _, r in self.replies[after:]),
            describe=f"{code} for {self._name}",
        )
        assert self.problem is None

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


@pytest.mark.slow
def test_intake_and_delivery_come_back(
    private_server: PrivateServer, private_system: System
) -> None:
    system = private_system
    hop = system.hop()
    smtpd = system.smtpd(ingest={"patience": "1s"})
    # a claim whose answer the crash has swallowed is given back: nothing waits for its lease
    queued = system.queued(hop, process={"lease": "60s", "drain": "5s"})
    children = [child.pid for child in smtpd.children()]
    pumps = [Pump(smtpd, f"p{n}") for n in range(3)]
    try:
        for pump in pumps:
            pump.wait(250)
        private_server.crash()
        down = [len(pump.replies) + 1 for pump in pumps]  # one may have been answered before
        with smtpd.connect() as client:
            big = client.send("a@example.org", ["big@hop.example"], b"x" * 998 + b"\r\n")
            large = client.send("a@example.org", ["big@hop.example"], (b"x" * 98 + b"\r\n") * 20000)
        assert [big, large] == ["451 4.3.0 Queue is unavailable, try again later"] * 2
        assert smtpd.alive
        assert queued.alive
        marks = [len(pump.replies) for pump in pumps]
        private_server.start()
        back = time.monotonic()
        for pump, after in zip(pumps, marks, strict=True):
            pump.wait(250, after)
        system.ask("SELECT 1")
        assert time.monotonic() - back < RETURN
    finally:
        for pump in pumps:
            pump.stop()
    for pump, after, mark in zip(pumps, down, marks, strict=True):
        # one whose commit was under way has no answer until it can be looked up
        assert {reply.code for _, reply in pump.replies} <= {250, 451}
        assert all(reply.startswith("451 4.3.0") for _, reply in pump.replies[after:mark])
    post(smtpd.port, "a@example.org", ["last@hop.example"], MAIL)
    hop.wait(lambda: "last@hop.example" in hop.deliveries())
    assert time.monotonic() - back < RETURN
    system.wait_empty()
    delivered = hop.deliveries()
    assert set(delivered.values()) == {1}
    accepted = {who for pump in pumps for who, reply in pump.replies if reply.code == 250}
    assert accepted <= set(delivered)
    refused = {who for pump in pumps for who, reply in pump.replies if reply.code == 451}
    assert refused.isdisjoint(delivered)
    assert [child.pid for child in smtpd.children()] == children
    # the crash may come between the last commit and its answer
    system.expected.add("outcomes not written: the database is away")
    private_server.crash()
    system.stop()  # clean, though the database is away


@pytest.mark.slow
@pytest.mark.parametrize("long", [False, True], ids=["within the lease", "longer than the lease"])
@pytest.mark.parametrize("answered", [True, False], ids=["answered meanwhile", "answered later"])
def test_outcomes_of_the_outage_are_settled_once(
    private_server: PrivateServer, private_system: System, long: bool, answered: bool
) -> None:
    system = private_system
    hop = system.hop(holding_at("end of data"))
    queued = system.queued(hop, process={"lease": "3s" if long else "60s"})
    people = [f"x{n}@hop.example" for n in range(10)]
    for person in people:
        system.enqueue(person)
    hop.wait_kept(10)
    private_server.crash()
    if answered:
        hop.release()
        queued.wait_log("can't settle")
    if long:
        take_time(3.5)
    private_server.start()
    if not answered:
        # the worker prolongs leases that have run out, or claims its own rows again: as it happens
        until(lambda: prolonged(system) == len(people))
    hop.release()
    system.wait_empty()
    assert hop.deliveries() == dict.fromkeys(people, 1)
    for person in people:
        # the worker may have claimed again what it had not yet been able to settle
        assert sorted(system.events(person)) in (["delivered"], ["delivered", "unknown"])


def prolonged(system: System) -> int:
    """Number of rows whose lease lasts."""
    return len(system.ask("SELECT id FROM queue WHERE lease_until > now()"))


@pytest.mark.parametrize("good", [True, False], ids=["delivered", "deferred"])
def test_own_rows_that_come_back_wait_for_their_attempt(system: System, good: bool) -> None:
    """After an outage a worker may find that its leases ran out: it keeps their outcomes."""
    answer = Do(hold=True, line="250 Ok" if good else "450 4.2.0 Later")
    hop = system.hop(lambda point, _, __: answer if point == "end of data" else None)
    system.queued(hop, process={"poll": "100ms"})
    people = [f"x{n}@hop.example" for n in range(10)]
    for person in people:
        system.enqueue(person)
    hop.wait(lambda: sum(t.content is not None for t in hop.transactions) == 10)
    system.ask("UPDATE queue SET lease_until = now() - interval '1s'")
    system.wait_queue(lambda rows: all(row["attempts"] == 2 for row in rows))
    assert len(hop.transactions) == 10
    hop.script = as_usual
    hop.release()
    system.wait_empty()
    assert hop.deliveries() == dict.fromkeys(people, 1)
    for person in people:
        assert (
            system.events(person) == ["unknown", "delivered"]
            if good
            else system.events(person) == ["unknown", "deferred", "delivered"]
        )


@pytest.mark.slow
def test_start_without_a_database(private_server: PrivateServer, private_system: System) -> None:
    private_server.crash()
    hop = private_system.hop()
    smtpd = private_system.smtpd()
    private_system.queued(hop, environment={"database": {"where": "priority < 9"}}, ready=False)
    with Client(smtpd.port) as client:
        assert client.send("a@example.org", ["x@hop.example"], MAIL).code == 451
        private_server.start()
        until(lambda: client.send("a@example.org", ["x@hop.example"], MAIL).code == 250)
    hop.wait_kept(1)
    private_system.wait_empty()
