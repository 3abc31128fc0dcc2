"""The meaning of an attempt's result: retry, verdict, routes (all pure)."""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgmta.config.types import HostPort
from pgmta.errors import DeliveryError, Stage
from pgmta.model import Item, Reply
from pgmta.states import TRANSITIONS, Event, Status
from queued.config import QueuedConfig, Retry
from queued.delivery.reply import CUT_OFF, NOT_BEGUN, Result
from queued.delivery.route import Destination, Hop, Login, hops_in_order
from queued.delivery.routes import Routes
from queued.delivery.tls_policy import TlsMode
from queued.worker.retry import delay
from queued.worker.verdict import judge

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
MAIL = (Stage.MAIL, Stage.RCPT, Stage.DATA, Stage.END_OF_DATA)
HOST = tuple(stage for stage in Stage if stage not in MAIL)
SESSION = (500, 501, 502, 503, 504, 530, 538)  # about the session, without 5.1.x in the text

periods = st.floats(min_value=0.001, max_value=1e7)
retries = st.builds(
    Retry,
    intervals=st.lists(periods, min_size=1, max_size=6),
    jitter=st.floats(min_value=0, max_value=0.99),
    expire=periods,
)
chances = st.floats(min_value=0, max_value=1, exclude_max=True)


def item(age: float = 0.0, attempts: int = 1, *, once: bool = False) -> Item:
    born = NOW - timedelta(seconds=age)
    return Item(1, 2, "s@a.example", "r@b.example", "b.example", attempts, born, 3, once=once)


@given(retries, st.integers(0, 50), chances)
def test_delay_is_within_jitter_below_its_interval(
    retry: Retry, attempts: int, chance: float
) -> None:
    seconds = delay(retry, attempts, chance)
    intervals = retry.intervals
    interval = intervals[min(max(attempts - 1, 0), len(intervals) - 1)]
    assert interval * (1 - retry.jitter) <= seconds <= interval
    assert delay(retry, attempts, 0.0) == interval
    assert delay(retry, 1000, 0.0) == intervals[-1]


@given(
    retries,
    st.sampled_from([0, *range(200, 600), 999]),
    st.sampled_from(HOST + MAIL),
    st.booleans(),
    st.booleans(),
    chances,
    st.floats(0, 1e7),
    st.integers(1, 20),
    st.booleans(),
)
def test_every_result_has_its_verdict(
    retry: Retry,
    code: int,
    stage: Stage,
    permanent: bool,
    unknown: bool,
    chance: float,
    age: float,
    attempts: int,
    once: bool,
) -> None:
    result = Result(
        Reply(code, "a\nb\x1b" + "é" * 2000), "h:25", stage, permanent and not code, unknown
    )
    row = item(age, attempts, once=once)
    outcome = judge(row, result, retry, started=NOW, now=NOW, chance=chance)
    wait = delay(retry, attempts, chance)
    seen_age = (NOW - outcome.item.ts).total_seconds()
    unknown = unknown or (stage is Stage.END_OF_DATA and code // 100 not in (2, 4, 5))
    if unknown and once:  # final, whatever the age
        assert (outcome.event, outcome.delay) == (Event.UNKNOWN, 0)
    elif unknown and seen_age + wait > retry.expire:
        # perhaps delivered: an operator decides, instead of a duplicate every few hours for ever
        assert outcome.event is Event.FAIL
        assert "outcome unknown" in outcome.reply.text
    elif unknown:
        assert (outcome.event, outcome.delay) == (Event.UNKNOWN, wait)
    elif 200 <= code < 300 and stage is Stage.END_OF_DATA:
        assert (outcome.event, outcome.delay) == (Event.DELIVERED, 0)
    elif (500 <= code < 600 and code not in SESSION and stage in MAIL) or (permanent and not code):
        assert (outcome.event, outcome.delay) == (Event.FAIL, 0)
    elif seen_age + wait > retry.expire:
        assert outcome.event is Event.FAIL
        assert "given up" in outcome.reply.text
    else:
        assert (outcome.event, outcome.delay) == (Event.DEFER, wait)
    assert outcome.reply.code == code
    assert outcome.reply.text.startswith("a b\ufffd")
    assert len(outcome.reply.text.encode()) <= 1020
    assert (outcome.host, outcome.stage, outcome.ended) == ("h:25", stage, NOW)
    assert (Status.SENDING, outcome.event) in TRANSITIONS


def test_attempts_that_were_cut_off_and_those_that_never_began() -> None:
    def verdict(result: Result) -> Event:
        return judge(item(age=1), result, Retry(), started=NOW, now=NOW, chance=0).event

    assert verdict(CUT_OFF) is Event.UNKNOWN
    assert verdict(NOT_BEGUN) is Event.HAND_BACK
    for error, event in [
        (DeliveryError("5.1.2 no such domain", Stage.MX, permanent=True), Event.FAIL),
        (DeliveryError("connection reset", Stage.END_OF_DATA, unknown=True), Event.UNKNOWN),
    ]:
        result = Result.of(error, "h:25")
        assert verdict(result) is event
        assert (result.reply, result.host) == (Reply(0, error.line), "h:25")
        assert not error.retry_elsewhere


@pytest.mark.parametrize(
    ("text", "enhanced"),
    [
        ("2.1.5 Ok", "2.1.5"),
        ("4.2.2", "4.2.2"),
        ("5.7.510 no", "5.7.510"),
        ("5.7.1: no", ""),
        ("3.1.1 x", ""),
        ("2.0.0000 x", ""),
        ("Ok 2.1.5", ""),
        ("", ""),
    ],
)
def test_enhanced_status_codes(text: str, enhanced: str) -> None:
    assert Reply(250, text).enhanced == enhanced
    assert str(Reply(250, text)) == f"250 {text}"
    assert str(Reply(0, text)) == text


def routes(**targets: str) -> Routes:
    given_routes = {name.replace("_", ".").replace("ANY", "*"): t for name, t in targets.items()}
    return Routes(QueuedConfig.model_validate({"routes": given_routes}).routes)


@pytest.mark.parametrize(
    ("domain", "hop"),
    [
        ("example.org", "exact"),
        ("a.example.org", "below"),
        ("x.y.example.org", "below"),
        ("b.a.example.org", "deeper"),
        ("c.b.a.example.org", "deeper"),
        ("notexample.org", "all"),
        ("org", "all"),
        ("direct.example.org", "mx"),
        ("[192.0.2.1]", "all"),
        ("xn--bcher-kva.example", "idna"),
    ],
)
def test_the_longest_route_wins(domain: str, hop: str) -> None:
    found = routes(
        ANY="all", ANY_example_org="below", ANY_a_Example_org="deeper", EXAMPLE_org="exact",
        direct_example_org="mx", bücher_example="idna",
    ).find(domain)  # fmt: skip
    expected = Destination(domain=domain) if hop == "mx" else Destination((Hop(hop, 25),))
    assert found == expected


@given(st.lists(st.sampled_from(["a.example", "*.a.example", "*.b.a.example", "*"])))
def test_destinations_are_equal_only_for_mail_that_may_share_a_transaction(
    patterns: list[str],
) -> None:
    table = Routes({pattern: HostPort(f"hop{n}", 25) for n, pattern in enumerate(patterns)})
    for domain in ("a.example", "b.a.example", "c.b.a.example", "other.example"):
        found = table.find(domain)
        assert found == table.find(domain)
        assert (found.hops == ()) == (found.domain == domain) == str(found).startswith("mx:")
    assert Routes({}).find("x.example") == Destination(domain="x.example")
    assert re.fullmatch(r"\[::1\]:25", str(Destination((Hop("::1", 25),))))


def test_hops_come_by_weight_and_fallbacks_last() -> None:
    hops = [Hop("last", fallback=True), Hop("often", weight=3), Hop("seldom"), Hop("never", 26)]
    dice = random.Random(7)
    orders = [[hop.host for hop in hops_in_order(hops, dice.random)] for _ in range(5000)]
    assert {order[-1] for order in orders} == {"last"}
    firsts = Counter(order[0] for order in orders)
    assert firsts["often"] / 5000 == pytest.approx(0.6, abs=0.03)
    assert firsts["seldom"] / 5000 == pytest.approx(0.2, abs=0.03)
    assert hops_in_order([], dice.random) == []


def test_destinations_differ_in_everything_but_the_name_of_the_route() -> None:
    hop, login = Hop("a.example", 587), Login("relay", "shop", "topsecret")
    found = [
        Destination((hop,)),
        Destination((hop, Hop("b.example", 587))),
        Destination((replace(hop, weight=2),)),
        Destination((replace(hop, fallback=True),)),
        Destination((hop,), protocol="lmtp"),
        Destination((hop,), implicit=True),
        Destination((hop,), tls=TlsMode.VERIFY),
        Destination((hop,), requiretls=True),
        Destination((hop,), login=login),
        Destination((hop,), login=replace(login, user="other")),
        Destination((hop,), login=replace(login, password="other")),
        Destination((hop,), login=replace(login, mechanisms=("PLAIN",))),
        Destination(domain="a.example"),
        Destination(domain="a.example", port=26),
        Destination(domain="a.example", tls=TlsMode.NONE),
    ]
    assert len({destination.key for destination in found}) == len(set(found)) == len(found)
    assert Destination((hop,), route="a").key == Destination((hop,), route="b").key
    assert "topsecret" not in "".join(f"{each!r} {each} {each.key}" for each in found)
