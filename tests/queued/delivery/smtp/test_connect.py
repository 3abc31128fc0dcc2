"""From a destination to a session: hosts of real MX records, each on its own loopback address."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest

from pgmta.errors import DeliveryError, NoHostLeft, Stage
from queued.config import Delivery
from queued.delivery.dns.hosts import Host
from queued.delivery.smtp import smtp_transport
from queued.delivery.smtp.client_session import ClientSession
from queued.delivery.smtp.smtp_parameters import SmtpParameters
from queued.delivery.smtp.smtp_transport import SmtpTransport
from queued.delivery.tls.tls_policy import HostPolicy, TlsDemand
from queued.delivery.transport.connection_facts import ConnectionFacts
from queued.delivery.transport.destination import Destination
from queued.delivery.transport.gate import Gate, HostClosed
from tests.support.keeper import CLOSED, HostKeeper
from tests.support.name_server import NameServer, serving_names
from tests.support.rawhop import DROP, HANG, RawHop, run, serving

BUSY = b"421 4.7.0 busy\r\n"
NAMES = ("a.example", "b.example", "c.example")


@pytest.fixture
def name_server() -> Iterator[NameServer]:
    mx = [f"{n} {name}." for n, name in enumerate(NAMES)]
    hosts = {name: {"A": [f"127.0.0.{n}"]} for n, name in enumerate(NAMES, 2)}
    with serving_names({"d.example": {"MX": mx}, **hosts}) as server:
        yield server


@dataclass
class Trial:
    """Sessions with the hosts of d.example."""

    smtp: SmtpTransport
    keeper: HostKeeper
    hops: list[RawHop]

    async def open(self, *tried: str) -> ClientSession:
        destination = Destination("smtp", SmtpParameters(), "d.example")
        session = await self.smtp.open(destination, self.places(tried))
        session.connection.abort()
        return session

    def places(self, names: tuple[str, ...]) -> frozenset[str]:
        port = next(hop.port for hop in self.hops if hop.port)
        return frozenset(f"{name}:{port}" for name in names)

    async def fails(self, *tried: str) -> DeliveryError:
        with pytest.raises(DeliveryError) as caught:
            await self.open(*tried)
        return caught.value


def play(
    name_server: NameServer,
    greetings: list[bytes | None],
    act: Callable[[Trial], Awaitable[None]],
    **options: object,
) -> None:
    """Let hosts greet with these octets, as usual for b"", or not listen for None."""

    async def main() -> None:
        async with AsyncExitStack() as stack:
            port, hops = 0, []
            for number, greeting in enumerate(greetings, 2):
                hop = RawHop({"greeting": greeting} if greeting else {}, port=port)
                hops.append(hop)
                if greeting is not None:
                    await stack.enter_async_context(serving(hop, f"127.0.0.{number}"))
                    port = hop.port
            delivery = Delivery.model_validate(
                {"dns": {"servers": [name_server.where]}, "forbidden": [], "port": port, **options}
            )
            keeper = HostKeeper()
            smtp = SmtpTransport("client.example", delivery, gate=Gate([keeper]))
            await act(Trial(smtp, keeper, hops))

    run(main())


@pytest.mark.parametrize(
    "first", [None, BUSY, b"554 5.7.1 not you\r\n", DROP, b"what?\r\n", b"220 x\r\n" + DROP]
)
def test_host_that_gives_no_session_leads_to_the_next_one(
    name_server: NameServer, first: bytes | None
) -> None:
    async def act(trial: Trial) -> None:
        session = await trial.open()
        assert session.host.name == "b.example"
        facts = session.facts
        assert (facts.host, facts.address) == ("b.example", "127.0.0.3")
        assert 0 < facts.dns_seconds < 30
        assert 0 < facts.connect_seconds < 30
        assert trial.hops[2].connections == 0

    play(name_server, [first, b"", b""], act)


def test_error_of_our_own_at_one_host_stops_no_other(name_server: NameServer) -> None:
    async def act(trial: Trial) -> None:
        security = trial.smtp.security
        real = security.policy

        async def policy(demand: TlsDemand, host: Host) -> HostPolicy:
            if host.name == "a.example":
                raise KeyError("a certificate")
            return await real(demand, host)

        security.policy = policy  # type: ignore[method-assign]
        assert (await trial.open()).host.name == "b.example"

    play(name_server, [b"", b""], act)


def test_error_has_what_each_host_said(name_server: NameServer) -> None:
    async def act(trial: Trial) -> None:
        error = await trial.fails()
        port = trial.hops[0].port
        assert error.line == (
            "5.7.1 not you (of b.example[127.0.0.3]); "
            "a.example[127.0.0.2] greeting: 421 4.7.0 busy; "
            f"4.4.1 connect to c.example[127.0.0.4]:{port}: Connection refused"
        )
        assert (error.code, error.stage, error.permanent) == (554, Stage.GREETING, False)
        assert (error.host, error.address) == (f"b.example:{port}", "127.0.0.3")

    play(name_server, [BUSY, b"554 5.7.1 not you\r\n", None], act)


def test_failed_set_up_has_its_time(name_server: NameServer) -> None:
    async def act(trial: Trial) -> None:
        facts = (await trial.fails("a.example")).facts
        assert isinstance(facts, ConnectionFacts)
        assert 0 < facts.connect_seconds < 30

    play(name_server, [b"", None, None], act)


def test_hosts_that_did_not_answer_are_tried_after_the_others(
    name_server: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smtp_transport, "SLOW_S", 0.1)

    async def act(trial: Trial) -> None:
        assert (await trial.open()).host.name == "b.example"
        assert (await trial.open()).host.name == "b.example"
        assert trial.hops[0].connections == 1
        trial.hops[1].says["greeting"] = trial.hops[2].says["greeting"] = BUSY
        del trial.hops[0].says["greeting"]
        assert (await trial.open()).host.name == "a.example", "the last chance"
        assert (await trial.open()).host.name == "a.example", "the first again"

    play(name_server, [HANG, b"", b""], act, timeouts={"greeting": "300ms"})


def test_domain_fails_if_dns_knows_no_usable_address(name_server: NameServer) -> None:
    async def act(trial: Trial) -> None:
        error = await trial.fails()
        assert (error.permanent, error.stage) == (True, Stage.ADDRESS)
        assert error.line.startswith("5.4.4 c.example has the address 127.0.0.4, and delivery.forb")
        assert "; 5.4.4 a.example has no address; 5.4.4 b.example has no address" in error.line
        name_server.zone["a.example"]["A"] = None
        trial.smtp.questions._kept.clear()
        error = await trial.fails()
        assert not error.permanent, "as long as one of them may have one"

    name_server.zone["a.example"] = {"TXT": ['"x"']}
    del name_server.zone["b.example"]
    play(name_server, [b""], act, forbidden=["127.0.0.0/8"], dns={
        "servers": [name_server.where], "timeout": "300ms"
    })  # fmt: skip


@pytest.mark.parametrize("first", [None, b"554 5.7.1 not you\r\n"])
def test_a_closed_host_behind_a_better_one_keeps_no_mail_back(
    name_server: NameServer, first: bytes | None
) -> None:
    async def act(trial: Trial) -> None:
        trial.keeper.close("b.example")
        error = await trial.fails()
        assert (error.host, error.permanent) == (f"a.example:{trial.hops[2].port}", False)
        assert not isinstance(error, HostClosed)
        trial.smtp._unresponsive.add("a.example")  # so the closed host comes first
        error = await trial.fails()
        assert error.line == "4.4.4 b.example is closed, and no better host was tried"
        assert not isinstance(error, HostClosed)
        with pytest.raises(NoHostLeft):
            await trial.open("a.example")
        assert not trial.keeper.told
        trial.smtp._unresponsive.remove("a.example")
        trial.keeper.close("a.example")
        error = await trial.fails()
        assert isinstance(error, HostClosed)
        assert error.reason == CLOSED
        assert trial.keeper.told == [("d.example", CLOSED)]
        assert [hop.connections for hop in trial.hops[1:]] == [0, 0]

    play(name_server, [first, b"", b""], act)
