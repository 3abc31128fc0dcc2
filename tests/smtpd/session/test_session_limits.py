"""Limits of one session and of new connections: mail, unknown recipients, seconds, octets/s."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgmta.accounts.network_limits import Rate
from pgmta.config.types import parse_network
from smtpd.commands import tally
from smtpd.config import Limits
from smtpd.session import timeouts
from smtpd.session.timeouts import Pace
from tests.support.serving import Client, serving
from tests.support.waiting import SLACK, take_time

STRANGER = "127.0.0.5"
RELAY = {"networks": ["127.0.0.1"], "domains": ["example.org"]}
MAIL = b"MAIL FROM:<a@b.example>\r\n"
MESSAGE = MAIL + b"RCPT TO:<r@example.org>\r\nRCPT TO:<s@example.org>\r\nDATA\r\n.\r\n"


def codes(client: Client) -> list[str]:
    """The codes of all replies until the server closes."""
    return [reply[:9] if reply[:1] == "4" else reply[:3] for reply in client.rest()]


@pytest.mark.parametrize(("bound", "number"), [("MAX_MESSAGES", 2), ("MAX_RECIPIENTS", 4)])
def test_a_session_has_so_much_mail(
    database: str, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch, bound: str, number: int
) -> None:
    monkeypatch.setattr(tally, bound, number)
    with serving(database, relay=RELAY) as port:
        with Client(port, STRANGER) as client:
            client.send(b"EHLO c\r\n" + MESSAGE * 2 + MAIL + b"NOOP\r\n")
            mail = ["250", "250", "250", "354", "250"]
            assert codes(client) == ["220", "250", *mail * 2, "421 4.7.0"]
        with Client(port) as client:  # of relay.networks
            client.send(b"EHLO c\r\n" + MESSAGE * 5 + b"QUIT\r\n")
            assert "421 4.7.0" not in codes(client)
    assert len(db.execute("SELECT FROM messages").fetchall()) == 7


def test_new_connections_per_minute(database: str) -> None:
    limits = {"new_connections_per_address": 3}
    with serving(database, relay=RELAY, limits=limits) as port:

        def greeting(source: str) -> str:
            with Client(port, source) as client:
                return client.reply()

        found = [greeting(STRANGER)[:3] for _ in range(3)]
        assert found == ["220"] * 3
        assert "new connections from your address" in greeting(STRANGER)
        others = [greeting(f"127.0.0.{n}")[:3] for n in (6, 7, 8) for _ in range(3)]
        assert others == ["220"] * 9  # four times as many from the network
        assert "new connections from your network" in greeting("127.0.0.9")
        assert {greeting("127.0.0.1")[:3] for _ in range(9)} == {"220"}  # trusted


@given(
    st.lists(st.tuples(st.floats(0, 3), st.sampled_from("abc")), max_size=200), st.integers(1, 60)
)
def test_rate(events: list[tuple[float, str]], limit: int) -> None:
    """No minute has more than twice the limit, and below the limit nothing is refused."""
    now = 100.0
    rate = Rate(lambda: now)
    networks = {name: parse_network(f"192.0.2.{number}") for number, name in enumerate("abc")}
    admitted: list[tuple[float, str]] = []
    for wait, name in events:
        now += wait
        tried = sum(1 for at, one in admitted if one == name and at > now - 60)
        if not rate.exceeded(networks[name], limit):
            rate.count_event(networks[name], limit)
            admitted.append((now, name))
        else:
            assert tried >= 1
    for at, name in admitted:
        in_minute = Counter(one for when, one in admitted if at <= when < at + 60)
        assert in_minute[name] <= 2 * limit
    first = [now for now, _ in admitted]
    if first and first[-1] - first[0] < 60 and len(events) <= limit:
        assert len(admitted) == len(events)


def test_networks_that_are_quiet_are_forgotten() -> None:
    now = 0.0
    rate = Rate(lambda: now)
    for number in range(20_000):
        now += 0.001
        rate.count_event(parse_network(f"10.1.{number // 250}.{number % 250}"), 600)
    assert len(rate._busy_until) < 2500  # ten connections per second count for 0.1 s each


SLOW: dict[str, tuple[str, bytes, bytes]] = {
    "EHLO": ("HELLO_TIMEOUT_S", b"", b"NOOP\r\n"),
    "transaction": ("MAX_TRANSACTION_S", b"EHLO c\r\n" + MAIL, b"RCPT TO:<r@example.org>\r\n"),
    "pause in content": ("MAX_CONTENT_PAUSE_S", b"EHLO c\r\n" + MESSAGE[:-3], b"x"),
    "content": ("MAX_CONTENT_S", b"EHLO c\r\n" + MESSAGE[:-3], b"x"),
    "a command": ("", b"", b"N"),
    "the rest of a command that is too long": ("", b"N" * 70_000, b"N"),
}


@pytest.mark.parametrize("what", SLOW)
def test_a_slow_client_keeps_no_place(
    database: str, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """One that sends a little all the time."""
    bound, begin, drop = SLOW[what]
    if bound:
        monkeypatch.setattr(timeouts, bound, 1.0)
    limits = {} if bound else {"timeout": "1s"}
    monkeypatch.setattr(tally, "MAX_USELESS_COMMANDS", 10_000)
    began = time.monotonic()
    with serving(database, relay=RELAY, limits=limits) as port, Client(port) as client:
        client.send(begin)
        client.socket.settimeout(0.01)
        replies = b""
        while b"421 4.4.2" not in replies:
            assert time.monotonic() < began + SLACK
            with suppress(TimeoutError):
                replies += client.socket.recv(1000)
            take_time(0.05)  # the client's pace
            with suppress(ConnectionError):  # the reply may be on its way, and the session closed
                client.send(drop)
        assert time.monotonic() >= began + 0.9


class Talk:
    """The commands of a session as the pace sees them."""

    host_name = "c"
    transaction: object = True

    @property
    def session(self) -> Any:
        return self


def ended(
    rate: Callable[[float], float], limit: int, *, waiting: Callable[[float], bool]
) -> float | None:
    """When a client whose content has this number of octets by time is ended, in 20 minutes."""
    now = 0.0
    pace, talk = Pace(Limits(), 0.0), cast(Any, Talk())
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(timeouts, "MIN_OCTETS_PER_S", limit)
        while now < 1200:
            if pace.judge_client(talk, int(rate(now)), now, waiting=waiting(now)):
                return now
            now += pace.interval
    return None


@given(st.integers(1, 1000), st.floats(0, 5))
def test_least_octets_per_second(limit: int, share: float) -> None:
    end = ended(lambda now: limit * share * now, limit, waiting=lambda _: True)
    if share < 0.99:
        assert end is not None
        assert 180 <= end <= 2 * 180 + 60
    elif share > 1.01:
        assert end is None
    # smtpd has not yet read what came
    assert ended(lambda now: 0.0, limit, waiting=lambda now: now % 170 > 100) is None


def test_a_pause_of_two_minutes_is_no_slowness() -> None:
    assert ended(lambda now: 1e6 * (now if now < 60 else 60 + max(0, now - 180)), 100,
                 waiting=lambda _: True) is None  # fmt: skip
