"""One request to an endpoint: signatures, and servers that hang, lie, reset and redirect."""

from __future__ import annotations

import ipaddress
import json
import ssl
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from pgmta.config.token_keys import KeyFile
from pgmta_features.webhooks import posting
from pgmta_features.webhooks.endpoint import EndpointUrl
from pgmta_features.webhooks.posting import EndpointConnection, Posted
from pgmta_features.webhooks.reach import Reach
from pgmta_features.webhooks.signing import Secrets, signed_fields
from queued.delivery.dns.forbidden import Network
from tests.features.providers.scripted_server import CUT, HANG, ScriptedServer, said, serving
from tests.support.authority import Authority
from tests.support.waiting import SLACK

LOOPBACK = ipaddress.ip_network("127.0.0.0/8")
KEY = KeyFile("a", bytes(32))


async def loopback(_: str) -> list[str]:
    return ["127.0.0.1"]


def connection(
    url: str, networks: Sequence[Network] = (LOOPBACK,), context: ssl.SSLContext | None = None
) -> EndpointConnection:
    return EndpointConnection(
        EndpointUrl.parse(url), Reach(networks, loopback),
        lambda: context or ssl.create_default_context(), foreign=False,
    )  # fmt: skip


async def post(url: str, networks: Sequence[Network] = (LOOPBACK,)) -> Posted:
    made = connection(url, networks)
    try:
        return await made.post({"webhook-id": "1"}, b"{}")
    finally:
        made.close()


def test_a_derived_secret_depends_on_the_key_and_the_nonce() -> None:
    secrets = Secrets([KEY, KeyFile("b", bytes(31) + b"b")], {"own": "whsec_x"})
    reference = secrets.new_reference()
    assert reference
    assert reference.startswith("key:a:")
    found = {secrets.find(each) for each in (reference, f"{reference}0", "key:b:" + reference[6:])}
    assert len(found) == 3
    assert secrets.find(reference) == Secrets([KEY], {}).find(reference)
    assert secrets.find("key:c:0") is None
    assert secrets.find("file:own") == "whsec_x"
    assert Secrets([], {}).new_reference() is None


def test_standard_webhooks_verifies_each_of_two_signatures() -> None:
    secrets = Secrets([KEY], {})
    old, new, other = (secrets.find(secrets.new_reference() or "") or "" for _ in range(3))
    body = json.dumps({"type": "mail.events", "data": [{"reply": "grüß"}]}).encode()
    fields = signed_fields([new, old], "msg_1", datetime.now(UTC), body)
    for secret in (old, new):
        assert Webhook(secret).verify(body, fields) == json.loads(body)
    with pytest.raises(WebhookVerificationError):
        Webhook(other).verify(body, fields)
    with pytest.raises(WebhookVerificationError):
        Webhook(new).verify(body.replace(b"mail", b"main"), fields)


async def test_a_connection_is_kept_and_a_request_goes_over_a_new_one_if_that_has_ended() -> None:
    closing = said("204 No Content", b"", "Connection: close")
    script = [said("200 OK"), said("204 No Content"), closing, said("200 OK")]
    async with serving(ScriptedServer(lambda n: script[n - 1])) as server:
        made = connection(f"http://shop.example:{server.port}/hook?a=b")
        for number in range(4):
            assert (await made.post({"webhook-id": str(number)}, b'{"n": 1}')).accepted
        assert server.connections == 2
        got = server.got[0]
        assert got.line == "POST /hook?a=b HTTP/1.1"
        assert got.fields["host"] == f"shop.example:{server.port}"
        assert got.fields["content-type"] == "application/json"
        assert got.body == b'{"n": 1}'
        made.close()


@pytest.mark.parametrize(("answer", "status", "reason"), [
    (said("302 Found", b"", "Location: http://127.0.0.1/"), 302, "redirects are not followed"),
    (said("410 Gone"), 410, "410 Gone"),
    (said("503 x", b"", "Retry-After: 7"), 503, "503 x"),
    ([b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx", CUT], 0, "connection closed"),
    ([CUT], 0, "connection closed"),
    ([b"SSH-2.0-x\r\n\r\n"], 0, "no HTTP"),
    ([b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 5000], 0, "a header without end"),
])  # fmt: skip
async def test_outcomes(answer: list[bytes], status: int, reason: str) -> None:
    async with serving(ScriptedServer(lambda _: answer)) as server:
        posted = await post(f"http://shop.example:{server.port}/")
    assert posted.status == status
    assert reason in posted.reason
    assert not posted.accepted
    assert posted.retry_after == (7.0 if status == 503 else None)


NEVER = "Retry-After: Mon, 01 Jan 99999999999999 00:00:00 GMT"


@pytest.mark.parametrize("status", [204, 503])
async def test_a_time_beyond_all_times_is_no_time(status: int) -> None:
    async with serving(ScriptedServer(lambda _: said(f"{status} x", b"", NEVER))) as server:
        assert await post(f"http://shop.example:{server.port}/") == Posted(status, f"{status} x")


async def test_retry_after_of_an_answer_that_accepts_is_not_read() -> None:
    async with serving(ScriptedServer(lambda _: said("204 x", b"", "Retry-After: 7"))) as server:
        assert await post(f"http://shop.example:{server.port}/") == Posted(204, "204 x")


async def test_an_error_that_nobody_expects_is_a_failure_of_the_request() -> None:
    async def find(_: str) -> list[str]:
        raise OverflowError

    url = EndpointUrl.parse("https://shop.example/")
    made = EndpointConnection(url, Reach([], find), ssl.create_default_context, foreign=False)
    assert await made.post({}, b"{}") == Posted(0, "unexpected OverflowError")


GIGABYTE = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(("script", "outcome"), [
    ([CHUNKED, *[b"1000\r\n" + b"x" * 4096 + b"\r\n"] * 100, HANG], Posted(200, "200 OK")),
    ([GIGABYTE, *[b"x" * 65536] * 20, HANG], Posted(200, "200 OK")),
    ([b"HTTP/1.1 200 OK\r\n", *[b"X: " + b"x" * 4000 + b"\r\n"] * 10, HANG],
     Posted(0, "a header without end")),
    ([b"HTTP/1.1 102 Processing\r\n\r\n" * 20, HANG], Posted(0, "answers of 1xx without end")),
    ([b"\0" * 100, HANG], None),
], ids=["chunks", "gigabyte", "header", "1xx", "no HTTP"])  # fmt: skip
async def test_an_answer_without_end_is_bounded(
    script: list[bytes], outcome: Posted | None
) -> None:
    began = time.monotonic()
    async with serving(ScriptedServer(lambda _: script)) as server:
        posted = await post(f"http://shop.example:{server.port}/")
    assert posted == (outcome or Posted(0, posted.reason))
    assert time.monotonic() - began < SLACK


@pytest.mark.parametrize("script", [
    [HANG], [b"HTTP/1.1 200 OK\r\n", HANG],
    [b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n", *[b"x"] * 98, HANG],
])  # fmt: skip
async def test_a_server_that_hangs_costs_the_time_of_a_request(
    script: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(posting, "POST_TIMEOUT_S", 0.3)
    began = time.monotonic()
    async with serving(ScriptedServer(lambda _: script)) as server:
        posted = await post(f"http://shop.example:{server.port}/")
    assert posted == Posted(0, posted.reason)
    assert time.monotonic() - began < 0.3 + SLACK


async def test_a_network_that_is_not_allowed_is_not_connected_to() -> None:
    async with serving(ScriptedServer(lambda _: said("200 OK"))) as server:
        for scheme in ("http", "https"):
            posted = await post(f"{scheme}://shop.example:{server.port}/", networks=[])
            assert posted.status == 0
            assert "webhooks.networks" in posted.reason
        assert server.connections == 0


async def test_a_name_that_leads_elsewhere_later_is_judged_for_each_connection() -> None:
    answers = [["93.184.215.14"], ["127.0.0.1"]]

    async def find(_: str) -> list[str]:
        return answers.pop(0)

    async with serving(ScriptedServer(lambda _: said("200 OK"))) as server:
        url = EndpointUrl.parse(f"https://shop.example:{server.port}/")
        reach = Reach([], find)
        assert await reach.find_addresses(url, foreign=False) == ["93.184.215.14"]
        made = EndpointConnection(url, reach, ssl.create_default_context, foreign=False)
        assert "no public address" in (await made.post({}, b"{}")).reason
        assert server.connections == 0


async def test_the_certificate_has_to_be_of_the_name(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    context = ssl.create_default_context(cafile=authority.path)
    server_context = authority.issue(["shop.example"]).context()
    async with serving(ScriptedServer(lambda _: said("200 OK")), server_context) as server:
        good = connection(f"https://shop.example:{server.port}/", context=context)
        assert (await good.post({}, b"{}")).accepted
        other = connection(f"https://other.example:{server.port}/", context=context)
        assert "mismatch" in (await other.post({}, b"{}")).reason
        good.close()
