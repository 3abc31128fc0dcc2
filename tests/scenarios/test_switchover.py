"""A planned change of the primary under load: clients wait for a moment, and get no 4xx or 5xx."""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.scenarios.conftest import installation
from tests.support.daemons import Smtpd
from tests.support.standby import Pair, replicated
from tests.support.submit import Client, stuff
from tests.support.system import System
from tests.support.users import add_user, plain
from tests.support.waiting import free_port, take_time, until

USER, PASSWORD = "ann", "a good password"
DOMAIN = "hop.example"
DOWN = itertools.cycle((1.0, 0.0, 5.0, 2.0))
"""Seconds from the end of one primary to the promotion of the other, one after the other."""
MAILS_PER_SESSION = 4  # then a client connects again
SIZES = {"small": 1_000, "in-a-part": 30_000, "in-parts": 1_200_000}  # octets


class Sender:
    """A client that sends mails of one kind, over ever new sessions, until `stop` is called.

    It stops at the first reply that it should not get.
    """

    def __init__(self, smtpd: Smtpd, name: str, octets: int, *, logs_in: bool) -> None:
        self.accepted: list[tuple[float, str]] = []
        """When a mail was accepted, by the monotonic clock, and its recipient."""
        self.problem: Exception | AssertionError | None = None
        self._smtpd, self._name, self._logs_in = smtpd, name, logs_in
        self._content = b"From: a@a.example\r\n\r\n" + (b"x" * 98 + b"\r\n") * (octets // 100)
        self._numbers = itertools.count()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                with self._smtpd.connect() as client:
                    self._session(client)
        except (Exception, AssertionError) as error:
            self.problem = error

    def _session(self, client: Client) -> None:
        def expect(code: int, what: str) -> None:
            reply = client.reply()
            assert reply.code == code, f"{self._name}: {reply} to {what}"

        client.write(b"EHLO c\r\n")
        expect(250, "EHLO")
        if self._logs_in:
            client.write(f"AUTH PLAIN {plain(USER, PASSWORD)}\r\n".encode())
            expect(235, "AUTH")
        for number in itertools.islice(self._numbers, MAILS_PER_SESSION):
            recipient = f"{self._name}.{number}@{DOMAIN}"
            client.write(f"MAIL FROM:<a@a.example>\r\nRCPT TO:<{recipient}>\r\nDATA\r\n".encode())
            for code, what in ((250, "MAIL"), (250, "RCPT"), (354, "DATA")):
                expect(code, what)
            client.write(stuff(self._content) + b".\r\n")
            expect(250, "the content")
            self.accepted.append((time.monotonic(), recipient))
            if self._stop.is_set():
                break
        client.write(b"QUIT\r\n")
        expect(221, "QUIT")

    def accepts(self, since: float) -> bool:
        """Whether a mail was accepted since; raises its problem."""
        if self.problem:
            raise self.problem
        return bool(self.accepted) and self.accepted[-1][0] > since

    def stop(self) -> None:
        self._stop.set()

    def join(self) -> None:
        self._thread.join()


@pytest.fixture
def pair(server: str) -> Iterator[Pair]:
    with replicated(server) as made:
        yield made


@pytest.fixture
def system(pair: Pair, tmp_path: Path) -> Iterator[System]:
    yield from installation(tmp_path, pair.either)


def longest_gap(moments: list[float], began: float, ended: float) -> float:
    """Seconds in which nothing was accepted, of a time that began and ended with something."""
    inside = [at for at in sorted(moments) if began <= at <= ended]
    return max(after - before for before, after in itertools.pairwise(inside))


@pytest.mark.slow
@pytest.mark.timeout(1200)  # for many of them
def test_a_switchover_costs_no_client_a_refusal(
    system: System, pair: Pair, request: pytest.FixtureRequest
) -> None:
    """Nor does it defer a delivery, and what is sent twice has a reason in the log."""
    add_user(pair.uri, USER, PASSWORD, senders=("a@a.example",))
    pair.db.execute("INSERT INTO pgmta.recipients (address) VALUES (%s)", (f"@{DOMAIN}",))
    hop, port = system.hop(), free_port()
    listen = {"port": port, "role": "internal", "auth": "offered", "auth_without_tls": True}
    relay = {"domains": [DOMAIN], "recipients": [{"table": True}]}
    smtpd = system.smtpd(listen=[listen], relay=relay)
    system.queued(hop)
    senders = [
        Sender(smtpd, f"{kind}.{who}", octets, logs_in=who == "user")
        for kind, octets in SIZES.items()
        for who in ("user", "stranger")
    ]

    def go_on(since: float) -> None:
        until(lambda: all(sender.accepts(since) for sender in senders))

    pauses, back = [], []
    try:
        go_on(time.monotonic())
        for down in itertools.islice(DOWN, request.config.getoption("--switchovers")):
            began = time.monotonic()
            back.append(pair.switch_over(partial(take_time, down)) - began)
            go_on(time.monotonic())
            ended = time.monotonic()
            moments = [at for sender in senders for at, _ in sender.accepted]
            pauses.append(longest_gap(moments, began - 0.5, ended))
            pair.wait_for_standby()
    finally:
        for sender in senders:
            sender.stop()
        for sender in senders:
            sender.join()
    for name, seconds in (("pauses", pauses), ("without a primary", back)):
        print(name, [round(each, 1) for each in seconds], "median", statistics.median(seconds))
    assert [sender.problem for sender in senders if sender.problem] == []
    system.wait_empty()
    accepted = {recipient for sender in senders for _, recipient in sender.accepted}
    # the answer to a claim may be lost with its server: then the log has an `unknown`
    rows = system.ask("SELECT event, recipient, reply FROM attempts WHERE event <> 'delivered'")
    assert [row for row in rows if row["event"] != "unknown"] == []
    twice = {recipient for recipient, times in hop.deliveries().items() if times > 1}
    assert twice <= {row["recipient"] for row in rows}
    assert set(hop.deliveries()) == accepted
