"""Hosts of a destination, asked of a real name server on a loopback port."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Iterator

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset
import pytest

from pgmta.config.types import HostPort
from pgmta.errors import DeliveryError, Stage
from queued.config import Dns
from queued.delivery.mx import Resolver
from queued.delivery.route import Destination, Hop

Answer = list[str] | dns.rcode.Rcode | None
"""Records, an error, or None for no answer at all; a name that is not in the zone is NXDOMAIN."""

ZONE: dict[str, dict[str, Answer]] = {
    "order.example": {"MX": ["30 c.example.", "10 a.example.", "20 b.example.", "10 A2.example."]},
    "many.example": {"MX": [f"{n} mx{n}.example." for n in range(30)]},
    "null.example": {"MX": ["0 ."]},
    "mixed.example": {"MX": ["0 .", "5 a.example."]},
    "plain.example": {"A": ["192.0.2.7"]},
    "empty.example": {"TXT": ['"x"']},
    "alias.example": {"CNAME": ["order.example."]},
    "broken.example": {"MX": dns.rcode.SERVFAIL, "A": dns.rcode.SERVFAIL},
    "refused.example": {"MX": dns.rcode.REFUSED, "A": dns.rcode.REFUSED},
    "silent.example": {"MX": None, "A": None},
    "xn--bcher-kva.example": {"MX": ["1 a.example."]},
    "a.example": {"A": ["192.0.2.1", "192.0.2.2"], "AAAA": ["2001:db8::1"]},
    "six.example": {"AAAA": ["2001:db8::6"]},
}


class NameServer:
    """Answers from ZONE, and counts what it was asked."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self.asked: Counter[str] = Counter()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            wire, peer = self._socket.recvfrom(4096)
            if wire == b"stop":
                self._socket.close()
                return
            answer = self._answer(dns.message.from_wire(wire))
            if answer:
                self._socket.sendto(answer.to_wire(), peer)

    def _answer(self, query: dns.message.Message) -> dns.message.Message | None:
        question = query.question[0]
        name = question.name.to_text(omit_final_dot=True)
        kind = dns.rdatatype.to_text(question.rdtype)
        self.asked[f"{name} {kind}"] += 1
        response = dns.message.make_response(query)
        response.flags |= dns.flags.RA
        records = ZONE.get(name)
        if records is None:
            response.set_rcode(dns.rcode.NXDOMAIN)
            return response
        if "CNAME" in records:
            (target,) = records["CNAME"] or []  # type: ignore[misc]
            response.answer.append(dns.rrset.from_text(question.name, 60, "IN", "CNAME", target))
            records = ZONE[target.rstrip(".")]
            name = target
        found = records.get(kind, [])
        if found is None:
            return None
        if isinstance(found, dns.rcode.Rcode):
            response.set_rcode(found)
        elif found:
            response.answer.append(
                dns.rrset.from_text(f"{name.rstrip('.')}.", 60, "IN", kind, *found)
            )
        return response

    def stop(self) -> None:
        self._socket.sendto(b"stop", ("127.0.0.1", self.port))
        self._thread.join()


@pytest.fixture
def name_server() -> Iterator[NameServer]:
    server = NameServer()
    yield server
    server.stop()


def resolver(server: NameServer, *, ipv6: bool = True, timeout: str = "30s") -> Resolver:
    config = Dns.model_validate({"servers": [f"127.0.0.1:{server.port}"], "timeout": timeout})
    return Resolver(config, ipv6)


def patience(name: str) -> str:
    """How long to wait for the answer to a question about that name."""
    return "1s" if name.startswith("silent.") else "30s"


async def names(found: Resolver, domain: str) -> list[str]:
    hosts = await found.hosts(Destination(domain=domain))
    assert all(host.port == 25 for host in hosts)
    return [host.host for host in hosts]


async def test_mx_hosts_come_by_preference_and_equal_ones_shuffled(
    name_server: NameServer,
) -> None:
    found = resolver(name_server)
    orders = {tuple(n.lower() for n in await names(found, "order.example")) for _ in range(60)}
    rest = ("b.example", "c.example")
    assert orders == {("a.example", "a2.example", *rest), ("a2.example", "a.example", *rest)}
    assert name_server.asked["order.example MX"] == 1, "answers are cached"
    assert {n.lower() for n in await names(found, "alias.example")} == set(next(iter(orders)))
    assert await names(found, "many.example") == [f"mx{n}.example" for n in range(10)]
    assert await names(found, "mixed.example") == ["a.example"]
    assert await names(found, "xn--bcher-kva.example") == ["a.example"]


async def test_without_mx_the_domain_itself_is_the_host(name_server: NameServer) -> None:
    found = resolver(name_server)
    for domain in ("plain.example", "empty.example"):
        assert await names(found, domain) == [domain]
    assert await found.addresses("plain.example") == ["192.0.2.7"]


async def test_fixed_hops_and_address_literals_ask_nobody(name_server: NameServer) -> None:
    found = resolver(name_server)
    hop = Hop("smarthost.example", 2525)
    assert await found.hosts(Destination((hop,))) == [HostPort("smarthost.example", 2525)]
    assert await names(found, "[192.0.2.1]") == ["192.0.2.1"]
    assert await names(found, "[IPv6:2001:db8::1]") == ["2001:db8::1"]
    for address in ("192.0.2.1", "2001:db8::1"):
        assert await found.addresses(address) == [address]
    assert not name_server.asked


async def test_addresses_of_both_families_or_of_one(name_server: NameServer) -> None:
    both, four = resolver(name_server), resolver(name_server, ipv6=False)
    assert sorted(await both.addresses("a.example")) == ["192.0.2.1", "192.0.2.2", "2001:db8::1"]
    assert sorted(await four.addresses("a.example")) == ["192.0.2.1", "192.0.2.2"]
    assert await both.addresses("six.example") == ["2001:db8::6"]


@pytest.mark.parametrize(
    ("domain", "permanent", "text"),
    [
        ("null.example", True, "5.1.10 "),
        ("nowhere.example", True, "5.1.2 domain nowhere.example "),
        ("broken.example", False, "4.4.3 MX of broken.example"),
        ("refused.example", False, "4.4.3 MX of refused.example"),
        ("silent.example", False, "4.4.3 MX of silent.example"),
    ],
)
async def test_domains_without_hosts(
    name_server: NameServer, domain: str, permanent: bool, text: str
) -> None:
    with pytest.raises(DeliveryError) as caught:
        await names(resolver(name_server, timeout=patience(domain)), domain)
    error = caught.value
    assert (error.permanent, error.code, error.stage) == (permanent, 0, Stage.MX)
    assert error.line.startswith(text)


@pytest.mark.parametrize(
    "host", ["empty.example", "nowhere.example", "broken.example", "silent.example", "six.example"]
)
async def test_hosts_without_addresses_are_never_permanent(
    name_server: NameServer, host: str
) -> None:
    with pytest.raises(DeliveryError, match=r"^4\.4\.[34] ") as caught:
        await resolver(name_server, ipv6=False, timeout=patience(host)).addresses(host)
    assert not caught.value.permanent


async def test_a_name_server_that_is_not_there_is_for_now(name_server: NameServer) -> None:
    config = Dns.model_validate({"servers": ["127.0.0.1:1"], "timeout": "500ms"})
    found = Resolver(config, ipv6=True)
    with pytest.raises(DeliveryError) as caught:
        await names(found, "order.example")
    assert not caught.value.permanent
