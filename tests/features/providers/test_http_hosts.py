"""Hosts of endpoints: only a configured one is asked, by a certificate that fits its name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from pgmta.errors import DeliveryError, Stage
from pgmta.states import Event
from pgmta_features.providers.http_parameters import parse_parameters
from pgmta_features.providers.http_transport import HttpTransport
from queued.config import Delivery
from queued.delivery.transport.destination import Destination
from queued.delivery.transport.envelope import Envelope
from tests.features.providers.scripted_server import (
    CUT,
    HANG,
    ScriptedServer,
    said,
    serving,
)
from tests.features.providers.test_outcomes import BODY, CONTENT, QUICK, envelope
from tests.support.certificates import Certificate
from tests.support.name_server import NameServer, Zone, serving_names
from tests.support.waiting import let_others_run

NAMES: Zone = {
    "api.example": {"A": ["127.0.0.1"], "AAAA": []},
    "public.example": {"A": ["192.0.2.1"], "AAAA": []},
}


@pytest.fixture(scope="module")
def authority() -> Certificate:
    return Certificate.root()


def transport(folder: Path, authority: Certificate, server: NameServer) -> HttpTransport:
    given: dict[str, Any] = {
        "dns": {"servers": [f"127.0.0.1:{server.port}"]},
        "tls": {"ca": str(authority.files(folder)[0])},
    }
    return HttpTransport("mta.example", Delivery.model_validate(given))


def destination(*urls: str, **given: Any) -> Destination:
    return Destination("http", parse_parameters({"url": [*urls], **BODY, **QUICK, **given}))


@pytest.mark.parametrize(
    ("names", "days", "reason"),
    [
        (("api.example",), (-1, 90), ""),
        (("other.example",), (-1, 90), "Hostname mismatch"),
        (("api.example",), (-9, -1), "expired"),
        (None, (-1, 90), "self-signed"),
    ],
)
async def test_a_certificate_has_to_fit(
    tmp_path: Path,
    authority: Certificate,
    names: tuple[str, ...] | None,
    days: tuple[int, int],
    reason: str,
) -> None:
    made = authority.issue(*names, days=days) if names else Certificate.self_signed("api.example")
    server = ScriptedServer(lambda _: said("202 Accepted"))
    with serving_names(NAMES) as names_server:
        way = transport(tmp_path, authority, names_server)
        async with serving(server, made.server(tmp_path)):
            to = destination(f"https://api.example:{server.port}/v1", private=True)
            if not reason:
                channel = await way.open(to)
                (result,) = await channel.send(envelope())
                assert result.event is Event.DELIVERED
                assert result.facts
                assert (result.facts.tls_verified, result.facts.address) == ("pkix", "127.0.0.1")
                channel.abort()
                return
            with pytest.raises(DeliveryError, match=reason) as caught:
                await way.open(to)
    assert (caught.value.stage, caught.value.permanent) == (Stage.TLS, False)
    assert server.got == []


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_the_last_octet_waits_with_tls_too(
    tmp_path: Path, authority: Certificate, run: Callable[[Any], None]
) -> None:
    """Callbacks of both loops come late for the octets of TLS, each in its own way."""
    made = authority.issue("api.example", days=(-1, 90))
    large = envelope(content=CONTENT + b"x" * 5_000_000)

    async def send(way: HttpTransport, server: ScriptedServer, *mails: Envelope) -> None:
        async with serving(server, made.server(tmp_path)):
            url = f"https://api.example:{server.port}/v1"
            document = {"raw": "{{message_base64}}"}
            channel = await way.open(destination(url, private=True, json=document))
            try:
                for mail in mails:
                    (result,) = await channel.send(mail)
                    assert result.event is Event.DELIVERED
            finally:
                channel.abort()
                await channel.wait_closed()

    async def send_all() -> None:
        with serving_names(NAMES) as names:
            way = transport(tmp_path, authority, names)
            for server in (
                ScriptedServer(lambda _: [HANG], early=True),
                ScriptedServer(lambda _: [CUT], deaf=True),
                ScriptedServer(lambda _: said("200 OK"), early=True),
            ):
                with pytest.raises(DeliveryError) as caught:
                    await send(way, server, large)
                assert caught.value.stage is Stage.DATA
            kept = ScriptedServer(lambda _: said("200 OK"))
            await send(way, kept, *(envelope(n) for n in range(1, 4)), large, envelope(5))
            assert (kept.connections, len(kept.got)) == (1, 5)
            await let_others_run(50)

    run(send_all())


async def test_no_private_address_by_dns(tmp_path: Path, authority: Certificate) -> None:
    server = ScriptedServer(lambda _: said("200 OK"))
    with serving_names(NAMES) as names:
        way = transport(tmp_path, authority, names)
        async with serving(server):
            url = f"http://api.example:{server.port}/"
            with pytest.raises(DeliveryError, match=r"127\.0\.0\.0/8") as caught:
                await way.open(destination(url))
            assert not caught.value.permanent  # an operator has to repair it
            channel = await way.open(destination(url, private=True))
            channel.abort()
        with pytest.raises(DeliveryError, match=r"^4.*none\.example") as caught:
            await way.open(destination("http://none.example/"))
        assert not caught.value.permanent
    assert server.got == []


async def test_a_redirect_asks_no_other_host(tmp_path: Path, authority: Certificate) -> None:
    other = ScriptedServer(lambda _: said("200 OK"))
    with serving_names(NAMES) as names:
        way = transport(tmp_path, authority, names)
        async with serving(other):
            place = f"Location: http://127.0.0.1:{other.port}/"
            for status in ("301 M", "302 M", "303 M", "307 M", "308 M"):
                server = ScriptedServer(lambda _, status=status: said(status, b"", place))  # type: ignore[misc]
                async with serving(server):
                    channel = await way.open(destination(f"http://127.0.0.1:{server.port}/"))
                    (result,) = await channel.send(envelope())
                    channel.abort()
                assert result.event is Event.DEFER
    assert (other.connections, other.got) == (0, [])


async def test_no_request_waits_for_a_silent_endpoint(
    tmp_path: Path, authority: Certificate
) -> None:
    """Its TLS session never begins, so that each connection to it ends by the timeout."""
    good = ScriptedServer(lambda _: said("200 OK"))
    silent = ScriptedServer(lambda _: [HANG])
    with serving_names(NAMES) as names:
        way = transport(tmp_path, authority, names)
        async with serving(good), serving(silent):
            urls = [{"url": f"https://127.0.0.1:{silent.port}/", "weight": 3},
                    f"http://127.0.0.1:{good.port}/"]  # fmt: skip
            to = destination(*urls, timeouts={"connect": "500ms"})  # type: ignore[arg-type]
            began = asyncio.get_running_loop().time()
            channel = await way.open(to)
            for number in range(50):
                (result,) = await channel.send(envelope(number))
                assert result.event is Event.DELIVERED
            assert asyncio.get_running_loop().time() - began < 5  # one timeout alone
            channel.abort()
    assert len(good.got) == 50
    assert silent.connections == 1  # it rests


async def test_a_kept_connection_with_tls_never_waits_in_vain(
    tmp_path: Path, authority: Certificate
) -> None:
    """Answers come in one to four parts, each in an own record."""

    def script(number: int) -> list[bytes]:
        parts = [b"HTTP/1.1 200 OK\r\n", b"X-A: 1\r\n", b"Content-Length: 2\r\n\r\n", b"ok"]
        most = number % 4
        return [b"".join(parts[: 4 - most]), *parts[4 - most :]]

    server = ScriptedServer(script, pause=0.005)
    with serving_names(NAMES) as names:
        way = transport(tmp_path, authority, names)
        async with serving(server, authority.issue("api.example").server(tmp_path)):
            to = destination(f"https://api.example:{server.port}/v1", private=True)
            channel = await way.open(to)
            for number in range(24):
                (result,) = await channel.send(envelope(number))
                assert result.event is Event.DELIVERED
            channel.abort()
    assert server.connections == 1
