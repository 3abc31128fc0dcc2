"""smtpd's processes: one dies, or all are told to stop, and no accepted message is lost."""

from __future__ import annotations

import signal
import threading

import pytest

from tests.support.daemons import Smtpd, lives
from tests.support.submit import Client
from tests.support.system import System
from tests.support.waiting import until

MAIL = b"Subject: x\r\n\r\nx\r\n"


class Sender(threading.Thread):
    """Sends until told to stop, with a new session whenever one breaks."""

    def __init__(self, smtpd: Smtpd, name: str) -> None:
        super().__init__(name=name)
        self._port = smtpd.port
        self.accepted: list[str] = []
        self.broken = 0
        self.enough = threading.Event()
        self.start()

    def run(self) -> None:
        count = 0
        while not self.enough.is_set():
            try:
                with Client(self._port) as client:
                    while not self.enough.is_set():
                        count += 1
                        who = f"{self.name}.{count}@hop.example"
                        if client.send("a@example.org", [who], MAIL).code == 250:
                            self.accepted.append(who)
            except OSError:
                self.broken += 1


def test_a_killed_child_is_replaced(system: System) -> None:
    system.expected = {"process died, restarting"}
    hop = system.hop()
    smtpd = system.smtpd(processes=2)
    system.queued(hop)
    senders = [Sender(smtpd, f"s{n}") for n in range(6)]
    try:
        until(lambda: all(len(s.accepted) > 5 for s in senders))
        # the kernel shares sessions out by hash: take a child that has some
        victim = max(smtpd.children(), key=lambda child: len(child.net_connections()))
        victim.kill()
        assert smtpd.wait_log("serving", 3)["pid"] != victim.pid
        until(lambda: any(s.broken for s in senders))
        marks = [len(s.accepted) for s in senders]
        until(lambda: all(len(s.accepted) > n + 5 for s, n in zip(senders, marks, strict=True)))
    finally:
        for sender in senders:
            sender.enough.set()
        for sender in senders:
            sender.join()
    assert len(smtpd.children()) == 2
    system.wait_empty()
    delivered = hop.deliveries()
    for sender in senders:
        assert set(sender.accepted) <= set(delivered)
    assert set(delivered.values()) == {1}


@pytest.mark.parametrize("lines", [10, 20_000], ids=["small", "large"])
def test_stop_lets_a_transaction_end(system: System, lines: int) -> None:
    hop = system.hop()
    smtpd = system.smtpd()
    half = b"." + b"x" * 97 + b"\r\n"
    with smtpd.connect() as idle, smtpd.connect() as client:
        client.begin("a@example.org", ["x@hop.example"])
        client.write((b"." + half) * lines)
        smtpd.signal(signal.SIGTERM)
        assert idle.reply().startswith("421 4.3.2 ")
        assert client.finish(half * lines).code == 250
        assert client.reply().startswith("421 4.3.2 ")
    smtpd.wait()
    system.queued(hop)
    (transaction,) = hop.wait_kept(1)
    assert (transaction.content or b"").endswith(half * lines * 2)
    system.wait_empty()


def test_reload_keeps_transactions_and_takes_the_new_file(system: System) -> None:
    smtpd = system.smtpd(relay={"networks": [], "domains": ["old.example"]})
    with smtpd.connect().begin("a@example.org", ["x@old.example"]) as client:
        smtpd.write("relay: {domains: [[]]}")
        smtpd.signal(signal.SIGHUP)
        smtpd.wait_log("configuration kept as it was")
        smtpd.write({**smtpd.config, "relay": {"networks": [], "domains": ["new.example"]}})
        smtpd.signal(signal.SIGHUP)
        smtpd.wait_log("configuration read again")
        assert client.finish(MAIL).code == 250
    smtpd.wait_log("serving", 2)
    with smtpd.connect().begin("a@example.org", ["x@new.example"]) as later:
        assert later.finish(MAIL).code == 250
    system.expected = {"configuration kept as it was"}


def test_children_end_with_a_killed_master(system: System) -> None:
    smtpd = system.smtpd(processes=2)
    children = smtpd.children()
    smtpd.kill()
    until(lambda: not any(map(lives, children)))
