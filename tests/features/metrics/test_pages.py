"""The pages of running daemons: figures equal the tables, and health follows the database."""

from __future__ import annotations

import asyncio
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from pgmta.config.metrics import MetricsPage
from pgmta.metrics.metrics_server import MetricsServer
from tests.features.metrics.scraping import Scrape, get, lint
from tests.support.database import PrivateServer
from tests.support.nexthop import Do, Transaction
from tests.support.submit import Client
from tests.support.system import System
from tests.support.waiting import PATIENCE, free_port, until

MESSAGES = 10_000
SIZE = b"Subject: x\r\n\r\nx\r\n"
COUNTS = "SELECT status, sum(rows)::int AS rows FROM queue_counts GROUP BY 1 ORDER BY 1"
ROWS = "SELECT status, count(*)::int AS rows FROM queue GROUP BY 1 ORDER BY 1"
READ_ONLY = "the database is read-only\n"
ATTEMPTS = """
SELECT event, coalesce(class, '') AS class, count(*)::int AS n FROM attempts GROUP BY 1, 2
"""


def mixed(point: str, line: str, _: Transaction | None) -> Do | None:
    """A next hop that takes, defers or refuses by the recipient."""
    if point == "RCPT" and "<defer" in line:
        return Do(line="451 4.2.2 Mailbox is full")
    if point == "RCPT" and "<fail" in line:
        return Do(line="550 5.1.1 No such user")
    return None


def send_mixed(port: int) -> tuple[int, int]:
    """Send mail of each kind; return the numbers of messages and refused recipients."""
    with ThreadPoolExecutor(10) as threads:
        list(threads.map(partial(send_hundred, port), range(0, MESSAGES, 100)))
    return MESSAGES, MESSAGES // 10


def send_hundred(port: int, start: int) -> None:
    with Client(port) as client:
        client.command("EHLO client.example")
        for number in range(start, start + 100):
            kind = ("ok", "ok", "ok", "defer", "fail")[number % 5]
            assert client.command("MAIL FROM:<s@example.org>").code == 250
            if number % 10 == 0:
                assert client.command("RCPT TO:<no good>").code == 553
            place = f"{kind}{number % 20}.example"
            assert client.command(f"RCPT TO:<{kind}{number}@{place}>").code == 250
            assert client.command("DATA").code == 354
            assert client.finish(SIZE).code == 250


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_figures_equal_the_tables(system: System) -> None:
    smtpd_page, page, more = free_port(), free_port(), free_port()
    hop = system.hop(mixed)
    listen = [{"port": free_port(), "role": "internal", "on_failed": "hold"}]
    place = {"listen": f"127.0.0.1:{smtpd_page}"}
    smtpd = system.smtpd(processes=2, listen=listen, metrics=place)
    own: dict[str, Any] = {"routes": {"*": hop.target}, "retry": {"intervals": ["1h"]}}
    system.queued(metrics={"listen": f"127.0.0.1:{page}"}, **own)
    system.queued(metrics={"listen": f"127.0.0.1:{more}"}, **own)
    messages, refused = send_mixed(smtpd.port)
    done = {"DEFERRED": messages // 5, "HOLD": messages // 5}
    until(lambda: {row["status"]: row["rows"] for row in system.ask(ROWS)} == done, PATIENCE)

    # one scrape has the sums over both processes
    seen = Scrape.of(smtpd_page)
    assert seen.value("pgmta_smtpd_messages_total") == messages
    assert seen.value("pgmta_smtpd_recipients_total") == messages
    assert seen.value("pgmta_smtpd_message_bytes_total") == messages * len(SIZE)
    assert seen.value("pgmta_smtpd_refusals_total", reason="bad_address") == refused
    assert seen.value("pgmta_smtpd_commit_messages_sum") == messages
    assert seen.value("pgmta_smtpd_sessions_total") == messages // 100 + 1  # and that of `ready`
    assert seen.value("pgmta_processes") == 3
    assert seen.value("pgmta_ready") == 1
    assert lint(seen.text) == ""

    # the attempts of both queued together are those in the log
    pages = [Scrape.of(page), Scrape.of(more)]
    for row in system.ask(ATTEMPTS):
        labels = {"event": row["event"], "class": row["class"]}
        for name in ("pgmta_queued_attempts_total", "pgmta_queued_next_hop_attempts_total"):
            assert sum(each.total(name, **labels) for each in pages) == row["n"], labels
    attempts = sum(each.total("pgmta_queued_attempts_total") for each in pages)
    assert attempts == sum(row["n"] for row in system.ask(ATTEMPTS)) == messages
    claimed = sum(each.value("pgmta_queued_claimed_rows_total") for each in pages)
    returned = sum(each.total("pgmta_queued_returned_rows_total") for each in pages)
    assert claimed == messages + returned
    first = sum(each.value("pgmta_queued_first_attempt_seconds_count") for each in pages)
    assert first == messages
    assert all(lint(each.text) == "" for each in pages)

    # the count of the queue comes within a minute, and both pages have it
    until(lambda: system.ask(COUNTS) == system.ask(ROWS), 70)
    for port in (page, more):

        def shown(port: int = port) -> dict[str, float]:
            found = Scrape.of(port)
            return {name: found.value("pgmta_queue_rows", status=name) for name in done}

        until(lambda shown=shown: shown() == done, 30)  # type: ignore[misc]
        found = Scrape.of(port)
        for status, rows in done.items():
            name = "pgmta_queue_next_hop_rows"
            assert found.value(name, status=status, next_hop=str(hop.target)) == rows
        assert found.value("pgmta_queue_count_share") == 1
        assert found.value("pgmta_queue_count_age_seconds") < 60

    # a process that is replaced stays in the sums
    smtpd.signal(signal.SIGHUP)
    smtpd.wait_log("processes replaced")
    until(lambda: Scrape.of(smtpd_page).value("pgmta_processes") == 3)
    assert Scrape.of(smtpd_page).value("pgmta_smtpd_messages_total") == messages


@pytest.mark.slow
def test_processes_that_hang_are_not_ready(system: System) -> None:
    port = free_port()
    smtpd = system.smtpd(processes=2, metrics={"listen": f"127.0.0.1:{port}"})
    until(lambda: get(port, "/readyz") == (200, "ready\n"))
    one, other = smtpd.children()
    one.suspend()
    try:
        assert get(port, "/readyz") == (200, "ready\n")  # one of two takes mail
        other.suspend()
        code, text = get(port, "/readyz")
        assert code == 503
        assert re.fullmatch(rf"a process does not answer: pid ({one.pid}|{other.pid})\n", text)
        seen = Scrape.of(port)
        assert seen.value("pgmta_ready") == 0
        assert seen.value("pgmta_processes") == 3
    finally:
        one.resume()
        other.resume()
    until(lambda: get(port, "/readyz") == (200, "ready\n"))
    assert Scrape.of(port).value("pgmta_ready") == 1


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_health_follows_the_database(private_system: System, private_server: PrivateServer) -> None:
    system = private_system
    ports = [free_port(), free_port()]
    pages = [{"listen": f"127.0.0.1:{port}"} for port in ports]
    system.smtpd(metrics=pages[0])
    system.queued(metrics=pages[1])
    for port in ports:
        until(lambda port=port: get(port, "/readyz")[0] == 200)  # type: ignore[misc]
    private_server.read_only(True)
    until(lambda: Scrape.of(ports[0]).value("pgmta_smtpd_outage_awaited"))
    assert get(ports[0], "/readyz")[0] == 200  # mail is taken, and waits
    for port in ports:
        until(lambda port=port: get(port, "/readyz") == (503, READ_ONLY), 30)  # type: ignore[misc]
    private_server.read_only(False)
    for port in ports:
        until(lambda port=port: get(port, "/readyz")[0] == 200, 20)  # type: ignore[misc]
    private_server.crash()
    for port in ports:
        until(lambda port=port: get(port, "/readyz")[0] == 503, 30)  # type: ignore[misc]
        assert get(port, "/healthz")[0] == 200
        began = time.monotonic()
        assert Scrape.of(port).value("pgmta_ready") == 0  # and the page comes nevertheless
        assert time.monotonic() - began < 5
    private_server.start()
    for port in ports:
        until(lambda port=port: get(port, "/readyz")[0] == 200)  # type: ignore[misc]
        assert Scrape.of(port).value("pgmta_ready") == 1


async def test_a_daemon_that_stops_is_not_ready() -> None:
    port = free_port()

    async def scrape(ready: bool) -> bytes:
        return f"{ready}".encode()

    async def problem() -> str:
        return ""

    settings = MetricsPage.model_validate({"listen": f"127.0.0.1:{port}"})
    server = MetricsServer("queued web", settings, scrape, problem)
    await server.start()
    try:
        assert await asyncio.to_thread(get, port, "/readyz") == (200, "ready\n")
        assert await asyncio.to_thread(get, port, "/metrics") == (200, "True")
        server.begin_stop()
        assert await asyncio.to_thread(get, port, "/readyz") == (503, "queued web stops\n")
        assert await asyncio.to_thread(get, port, "/metrics") == (200, "False")
    finally:
        await server.stop()
