"""Hosts of a destination and their addresses, asked of a real name server on a loopback port."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

import dns.rcode
import pytest

from pgmta.errors import DeliveryError, Stage
from queued.config import Delivery
from queued.delivery.dns import hosts as hosts_module
from queued.delivery.dns.addresses import in_turns
from queued.delivery.dns.hop import Hop
from queued.delivery.dns.hosts import Host, Hosts, OwnHost
from queued.delivery.dns.resolver import Questions
from queued.delivery.dns.unresponsive import Unresponsive
from tests.support.name_server import NameServer, Says, Zone, serving_names

OWN = "relay.example"
OWN_ADDRESS = "198.51.100.7"
PUBLIC = ["192.0.2.0/24", "198.51.100.0/24", "2001:db8::/32"]
"""Networks of documentation, which stand for those of the Internet here."""
LABEL = "l" * 63

ZONE: Zone = {
    "order.example": {"MX": ["30 c.example.", "10 a.example.", "20 b.example.", "10 A2.example."]},
    "many.example": {"MX": [f"{n} mx{n}.example." for n in range(30)]},
    "null.example": {"MX": ["0 ."]},
    "mixed.example": {"MX": ["0 .", "5 a.example."]},
    "twice.example": {"MX": ["20 a.example.", "10 a.example."]},
    "plain.example": {"A": ["192.0.2.7"]},
    "empty.example": {"TXT": ['"x"']},
    "alias.example": {"CNAME": ["order.example."]},
    "broken.example": {"MX": dns.rcode.SERVFAIL, "A": dns.rcode.SERVFAIL},
    "refused.example": {"MX": dns.rcode.REFUSED, "A": dns.rcode.REFUSED},
    "silent.example": {"MX": None, "A": None},
    "xn--bcher-kva.example": {"MX": ["1 a.example."]},
    "a.example": {"A": ["192.0.2.1", "192.0.2.2"], "AAAA": ["2001:db8::1"]},
    "six.example": {"AAAA": ["2001:db8::6"]},
    "half.example": {"A": ["192.0.2.8"], "AAAA": None},
    "late.example": {"A": Says(["192.0.2.8"], delay=0.3)},
    "signed.example": {"MX": Says(["1 a.example."], ad=True)},
    # with this host
    "first.example": {"MX": ["10 relay.example.", "20 a.example."]},
    "second.example": {"MX": ["10 a.example.", "20 RELAY.example.", "20 b.example.", "30 c."]},
    "equal.example": {"MX": ["10 a.example.", "10 relay.example."]},
    "hidden.example": {"MX": ["10 a.example.", "20 ours.example.", "20 b.example."]},
    "best.example": {"MX": ["10 ours.example.", "20 a.example."]},
    "relay.example": {"A": ["192.0.2.9"]},
    "ours.example": {"A": ["192.0.2.50", OWN_ADDRESS]},
    "b.example": {"A": ["192.0.2.3"]},
    # hostile names
    "names.example": {
        "MX": [
            "1 127.0.0.1.", "2 a\\.b.example.", "3 x\\000y.example.", "4 x\\010y.example.",
            "5 a\\032b.example.", f"6 {'.'.join([LABEL] * 3)}.{'l' * 61}.", "7 \\255.example.",
            "8 *.example.", "9 ok_1.example.", "10 -.example.",
        ]
    },
    "nameless.example": {"MX": ["1 127.0.0.1.", "2 a\\.b\\027[31m.example."]},
    # addresses
    "loop.example": {"A": ["127.0.0.1", "127.9.9.9", "0.0.0.0", "169.254.1.1"]},
    "mapped.example": {"AAAA": ["::ffff:127.0.0.1", "::1", "64:ff9b::7f00:1", "2002:7f00:1::"]},
    "partly.example": {"A": ["127.0.0.1", "192.0.2.5"]},
    "crowd.example": {
        "A": [f"192.0.2.{n}" for n in range(1, 60)], "AAAA": [f"2001:db8::{n:x}" for n in range(60)]
    },
}  # fmt: skip


@pytest.fixture(autouse=True)
def own_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this host have one more address."""
    monkeypatch.setattr(OwnHost, "has_address", lambda self, address: str(address) == OWN_ADDRESS)


@pytest.fixture
def name_server() -> Iterator[NameServer]:
    with serving_names(ZONE) as server:
        yield server


def hosts_of(server: NameServer, *, timeout: str = "30s", **options: object) -> Hosts:
    config = Delivery.model_validate(
        {"dns": {"servers": [server.where], "timeout": timeout}, "allowed": PUBLIC, **options}
    )
    return Hosts(OWN, config, Questions(config.dns), Unresponsive())


def patience(name: str) -> str:
    """How long to wait for the answer to a question about that name."""
    return "1s" if name.startswith("silent.") else "30s"


async def names(
    found: Hosts, domain: str, tried: tuple[str, ...] = (), earlier: int = 0
) -> list[str]:
    places = [f"{name}:25" for name in tried]
    hosts = [host async for host in found.find_hosts(domain, None, places, earlier)]
    assert all(host.port == 25 and not host.listed for host in hosts)
    return [host.name for host in hosts]


async def addresses(found: Hosts, name: str, *, listed: bool = False) -> list[str]:
    return await found.addresses(Host(name, 25, listed=listed))


async def test_mx_hosts_come_by_preference_and_equal_ones_shuffled(
    name_server: NameServer,
) -> None:
    found = hosts_of(name_server)
    orders = {tuple(await names(found, "order.example")) for _ in range(60)}
    rest = ("b.example", "c.example")
    assert orders == {("a.example", "a2.example", *rest), ("a2.example", "a.example", *rest)}
    assert name_server.asked["order.example MX"] == 1, "answers are kept"
    assert set(await names(found, "alias.example")) == set(next(iter(orders)))
    assert await names(found, "many.example") == [f"mx{n}.example" for n in range(5)]
    assert await names(found, "mixed.example") == ["a.example"]
    assert await names(found, "twice.example") == ["a.example"]
    assert await names(found, "xn--bcher-kva.example") == ["a.example"]


async def test_hosts_that_were_tried_are_left_out_and_count(name_server: NameServer) -> None:
    found = hosts_of(name_server, hosts=3)
    assert await names(found, "order.example", ("a.example",)) == ["a2.example", "b.example"]
    assert await names(found, "many.example", ("mx0.example", "mx1.example")) == ["mx2.example"]
    assert await names(found, "many.example", ("mx0.example", "mx1.example", "mx2.example")) == []


async def test_each_attempt_begins_after_the_hosts_of_the_one_before(
    name_server: NameServer,
) -> None:
    name_server.zone["six.test"] = {"MX": [f"{n} mx{n}.example." for n in range(6)]}
    found = hosts_of(name_server)
    orders = ["01234", "50123", "45012", "34501", "23450", "12345", "01234"]
    for earlier, order in enumerate(orders):
        assert await names(found, "six.test", earlier=earlier) == [f"mx{n}.example" for n in order]
    assert (await names(found, "many.example", earlier=5))[0] == "mx25.example"
    assert await names(found, "six.test", ("mx5.example",), 1) == [
        f"mx{n}.example" for n in range(4)
    ]
    assert [n[0] for n in await names(found, "order.example", earlier=1)] == ["a", "a", "b", "c"], (
        "each attempt tries all of few hosts"
    )
    few = hosts_of(name_server, hosts=1)
    assert await names(few, "order.example", earlier=2) == ["b.example"]
    for domain in ("second.example", "hidden.example"):  # this host cuts off all but one
        assert await names(few, domain, earlier=1) == ["a.example"]
    hops = *(Hop(f"relay{n}.example") for n in range(5)), Hop("last.example", fallback=True)
    first, *others = [host.name async for host in found.find_hosts(hops, earlier=1)]
    assert (first, len(others)) == ("last.example", 4)


async def test_hosts_that_did_not_answer_take_the_place_of_no_other(
    name_server: NameServer,
) -> None:
    config = Delivery.model_validate({"dns": {"servers": [name_server.where]}})
    unresponsive = Unresponsive()
    found = Hosts(OWN, config, Questions(config.dns), unresponsive)
    for n in (0, 1, 2, 3, 4, 6):
        unresponsive.add(f"mx{n}.example")
    order = await names(found, "many.example")
    assert order == [f"mx{n}.example" for n in (5, 7, 8, 9, 10)]
    name_server.zone["two.test"] = {"MX": ["1 mx4.example.", "2 mx5.example."]}
    assert await names(found, "two.test") == ["mx5.example", "mx4.example"]


async def test_without_mx_the_domain_itself_is_the_host(name_server: NameServer) -> None:
    found = hosts_of(name_server)
    for domain in ("plain.example", "empty.example"):
        assert await names(found, domain) == [domain]
    assert await addresses(found, "plain.example") == ["192.0.2.7"]


async def test_port_and_security_of_hosts(name_server: NameServer) -> None:
    found = hosts_of(name_server, port=2525)
    for domain, secure in [("signed.example", True), ("xn--bcher-kva.example", False)]:
        for port in (None, 26):
            hosts = [host async for host in found.find_hosts(domain, port)]
            assert hosts == [Host("a.example", port or 2525, secure=secure)]


async def test_fixed_hops_and_address_literals_ask_no_name_server(name_server: NameServer) -> None:
    found = hosts_of(name_server, literals=True)
    hops = Hop("second.example", 587, fallback=True), Hop("first.example", 2525)
    assert [host async for host in found.find_hosts(hops)] == [
        Host("first.example", 2525, listed=True),
        Host("second.example", 587, listed=True),
    ]
    same = Hop("relay.example", 587), Hop("relay.example", 25)
    left = [host.port async for host in found.find_hosts(same, None, ["relay.example:587"])]
    assert left == [25], "a host is known by its name and port"
    assert await names(found, "[192.0.2.1]") == ["192.0.2.1"]
    assert await names(found, "[IPv6:2001:db8::1]") == ["2001:db8::1"]
    for address in ("192.0.2.1", "2001:db8::1"):
        assert await addresses(found, address) == [address]
    assert not name_server.asked


@pytest.mark.parametrize("domain", ["[192.0.2.1]", "[IPv6:2001:db8::1]", "[x-tag:1]", "[]"])
async def test_address_literals_fail_unless_they_are_allowed(
    name_server: NameServer, domain: str
) -> None:
    with pytest.raises(DeliveryError, match=r"^5\.1\.[23] ") as caught:
        await names(hosts_of(name_server), domain)
    assert caught.value.permanent


async def test_this_host_and_those_after_it_are_left_out(name_server: NameServer) -> None:
    found = hosts_of(name_server)
    assert await names(found, "second.example") == ["a.example"]
    assert await names(found, "hidden.example") == ["a.example"], "by its address"
    for domain in ("first.example", "equal.example", "best.example", "relay.example"):
        with pytest.raises(DeliveryError, match=r"^5\.4\.6 the best MX host of ") as caught:
            await names(found, domain)
        assert caught.value.permanent
    with pytest.raises(DeliveryError, match=r"^5\.4\.6 \[198"):
        await names(hosts_of(name_server, literals=True), f"[{OWN_ADDRESS}]")


async def test_equal_host_without_answer_does_not_delay_others(
    name_server: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosts_module, "_OWN_ADDRESSES_TIMEOUT_S", 0.05)
    name_server.zone["slow.example"] = {"MX": ["1 a.example.", "1 silent.example."]}
    found = hosts_of(name_server)
    assert set(await names(found, "slow.example")) == {"a.example", "silent.example"}


async def test_mail_does_not_go_round_if_the_address_of_this_host_comes_late(
    name_server: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosts_module, "_OWN_ADDRESSES_TIMEOUT_S", 0.05)
    name_server.zone["late.example"] = {"A": Says([OWN_ADDRESS], delay=1.0)}
    name_server.zone["round.example"] = {"MX": ["1 late.example."]}
    found = hosts_of(name_server)
    assert await names(found, "round.example") == ["late.example"]
    with pytest.raises(DeliveryError, match=r"^4\.4\.6 late\.example is this host"):
        await addresses(found, "late.example")
    assert await found.web_addresses("late.example") == [OWN_ADDRESS]


async def test_mx_names_that_are_no_host_names_are_left_out(name_server: NameServer) -> None:
    found = hosts_of(name_server, hosts=100)
    longest = f"{'.'.join([LABEL] * 3)}.{'l' * 61}"  # 255 octets
    assert await names(found, "names.example") == [longest, "ok_1.example", "-.example"]
    with pytest.raises(DeliveryError, match=r"^5\.4\.4 MX of nameless\.example: ") as caught:
        await names(found, "nameless.example")
    assert caught.value.permanent
    assert caught.value.line.isprintable()


@pytest.mark.parametrize(
    ("domain", "permanent", "text"),
    [
        ("null.example", True, "5.1.10 "),
        ("nowhere.example", True, "5.1.2 domain nowhere.example "),
        ("broken.example", False, "4.4.3 MX of broken.example: SERVFAIL from 127.0.0.1"),
        ("refused.example", False, "4.4.3 MX of refused.example: REFUSED from 127.0.0.1"),
        ("silent.example", False, "4.4.3 MX of silent.example: no answer in 1 s"),
        (f"{LABEL}l.example", True, "5.1.2 "),
        (".".join([LABEL] * 4) + ".example", True, "5.1.2 "),
        ("a..example", True, "5.1.2 "),
        ("", True, "5.1.2 "),
        ("\x1b[31m\u202e.example", True, "5.1.2 "),
    ],
)
async def test_domains_without_hosts(
    name_server: NameServer, domain: str, permanent: bool, text: str
) -> None:
    with pytest.raises(DeliveryError) as caught:
        await names(hosts_of(name_server, timeout=patience(domain)), domain)
    error = caught.value
    assert (error.permanent, error.code, error.stage) == (permanent, 0, Stage.MX)
    assert error.line.startswith(text)
    assert error.line.isprintable()


async def test_addresses_of_both_families_or_of_one(name_server: NameServer) -> None:
    both, four = hosts_of(name_server), hosts_of(name_server, ipv6=False)
    assert sorted(await addresses(both, "a.example")) == ["192.0.2.1", "192.0.2.2", "2001:db8::1"]
    assert sorted(await addresses(four, "a.example")) == ["192.0.2.1", "192.0.2.2"]
    assert await addresses(both, "six.example") == ["2001:db8::6"]


async def test_family_without_answer_does_not_delay_the_other(
    name_server: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queued.delivery.dns.addresses._OTHER_FAMILY_S", 0.05)
    assert await addresses(hosts_of(name_server), "half.example") == ["192.0.2.8"]


async def test_family_without_addresses_does_not_end_the_wait_for_the_other(
    name_server: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else mail to a host without IPv6 and with slow name servers would fail for good."""
    monkeypatch.setattr("queued.delivery.dns.addresses._OTHER_FAMILY_S", 0.01)
    assert await addresses(hosts_of(name_server), "late.example") == ["192.0.2.8"]
    with pytest.raises(DeliveryError, match=r"^4\.4\.3 A of silent\.example") as caught:
        await addresses(hosts_of(name_server, timeout="1s"), "silent.example")
    assert not caught.value.permanent


@pytest.mark.parametrize(
    ("host", "permanent"),
    [
        ("empty.example", True),
        ("nowhere.example", True),
        ("broken.example", False),
        ("silent.example", False),
        ("six.example", True),
        ("loop.example", True),
        ("127.0.0.1", True),
    ],
)
async def test_hosts_without_addresses(name_server: NameServer, host: str, permanent: bool) -> None:
    found = hosts_of(name_server, ipv6=False, timeout=patience(host))
    with pytest.raises(DeliveryError, match=r"^[45]\.4\.[34] ") as caught:
        await addresses(found, host)
    assert caught.value.permanent == permanent
    if host != "127.0.0.1" and host != "loop.example":  # a route may give any address
        with pytest.raises(DeliveryError, match=r"^4\.4\.[34] ") as caught:
            await addresses(found, host, listed=True)
        assert not caught.value.permanent


async def test_forbidden_networks(name_server: NameServer) -> None:
    found = hosts_of(name_server)
    with pytest.raises(DeliveryError, match=r"delivery\.forbidden has (127|::1|0\.)") as caught:
        await addresses(found, "mapped.example")
    assert caught.value.permanent
    assert await addresses(found, "partly.example") == ["192.0.2.5"]
    assert "127.0.0.1" in await addresses(found, "partly.example", listed=True)
    more = hosts_of(name_server, forbidden=["192.0.2.0/24", "2001:db8::/32"], allowed=[])
    assert len(await addresses(more, "mapped.example")) == 4
    with pytest.raises(DeliveryError, match="has 192.0.2.0/24|has 2001:db8::/32"):
        await addresses(more, "a.example")


async def test_networks_of_the_operator_are_allowed(name_server: NameServer) -> None:
    name_server.zone["inside.example"] = {"A": ["10.1.2.3"], "AAAA": ["fd00::1"]}
    name_server.zone["other.example"] = {"A": ["10.2.0.1"], "AAAA": ["::ffff:10.2.0.2"]}
    found = hosts_of(name_server, allowed=["10.1.0.0/16", "::/0"])
    assert sorted(await addresses(found, "inside.example")) == ["10.1.2.3", "fd00::1"]
    with pytest.raises(DeliveryError, match=r"delivery\.forbidden has 10\.0\.0\.0/8"):
        await addresses(found, "other.example")
    found = hosts_of(name_server, allowed=["10.2.0.2/32"])
    (left,) = await addresses(found, "other.example")
    assert ipaddress.ip_address(left) == ipaddress.ip_address("::ffff:10.2.0.2")


async def test_addresses_take_turns_and_are_few(name_server: NameServer) -> None:
    found = hosts_of(name_server)
    seen = set()
    for _ in range(40):
        four = await addresses(found, "crowd.example")
        assert len(four) == 4
        assert [":" in each for each in four] in ([True, False] * 2, [False, True] * 2)
        seen.add(four[0])
    assert len(seen) > 10
    few = [ipaddress.ip_address(each) for each in ("192.0.2.1", "192.0.2.2", "2001:db8::1")]
    assert sorted(in_turns([*few, *few])) == ["192.0.2.1", "192.0.2.2", "2001:db8::1"]


async def test_addresses_that_did_not_answer_come_last(name_server: NameServer) -> None:
    config = Delivery.model_validate({"dns": {"servers": [name_server.where]}, "allowed": PUBLIC})
    unresponsive = Unresponsive()
    found = Hosts(OWN, config, Questions(config.dns), unresponsive)
    unresponsive.add("192.0.2.1")
    for _ in range(20):
        assert (await addresses(found, "a.example"))[-1] == "192.0.2.1"


async def test_names_of_routes_may_be_in_the_hosts_file() -> None:
    config = Delivery()
    found = Hosts(OWN, config, Questions(config.dns), Unresponsive())
    assert "127.0.0.1" in await addresses(found, "localhost", listed=True)
