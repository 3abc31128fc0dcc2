"""Enhanced status codes, routes and destinations (all pure)."""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgmta.config.types import HostPort
from pgmta.model import Reply
from queued.config import QueuedConfig
from queued.delivery.dns.hop import Hop, hops_in_order
from queued.delivery.smtp.smtp_parameters import SmtpLogin, SmtpParameters
from queued.delivery.tls.tls_policy import TlsMode
from queued.delivery.transport.destination import Destination, TlsWish
from queued.routing.routes import Routed, Routes
from tests.support.rows import mail


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
    ).find(mail(domain))  # fmt: skip
    assert found.destination == (mx(domain) if hop == "mx" else to(Hop(hop, 25)))


def to(*hops: Hop, **options: Any) -> Destination:
    return Destination("smtp", SmtpParameters(hops, **options))


def mx(domain: str, **options: Any) -> Destination:
    return Destination("smtp", SmtpParameters(**options), domain)


@given(st.lists(st.sampled_from(["a.example", "*.a.example", "*.b.a.example", "*"])))
def test_destinations_are_equal_only_for_mail_that_may_share_a_transaction(
    patterns: list[str],
) -> None:
    table = Routes({pattern: HostPort(f"hop{n}", 25) for n, pattern in enumerate(patterns)})
    for domain in ("a.example", "b.a.example", "c.b.a.example", "other.example"):
        found = table.find(mail(domain)).destination
        assert found == table.find(mail(domain)).destination
        is_mx = found.parameters == SmtpParameters()
        assert is_mx == (found.domain == domain) == str(found).startswith("mx:")
    assert Routes({}).find(mail("x.example")).destination == mx("x.example")
    assert re.fullmatch(r"\[::1\]:25", str(to(Hop("::1", 25))))


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
    hop, login = Hop("a.example", 587), SmtpLogin("relay", "shop", "topsecret")
    found = [
        to(hop),
        to(hop, Hop("b.example", 587)),
        to(replace(hop, weight=2)),
        to(replace(hop, fallback=True)),
        replace(to(hop), transport="lmtp"),
        to(hop, implicit=True),
        to(hop, tls=TlsMode.VERIFY),
        replace(to(hop), wish=TlsWish.REQUIRED),
        replace(to(hop), wish=TlsWish.OPTIONAL),
        to(hop, login=login),
        to(hop, login=replace(login, user="other")),
        to(hop, login=replace(login, password="other")),
        to(hop, login=replace(login, mechanisms=("PLAIN",))),
        mx("a.example"),
        mx("a.example", port=26),
        mx("a.example", tls=TlsMode.NONE),
    ]
    assert len({destination.key for destination in found}) == len(set(found)) == len(found)
    assert Routed(to(hop), "a").group == Routed(to(hop), "b").group
    assert "topsecret" not in "".join(f"{each!r} {each} {each.key}" for each in found)
