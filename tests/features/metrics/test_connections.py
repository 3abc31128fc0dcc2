"""Clients of the page of figures: none keeps a place from a probe, or writes into the log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from pgmta.config.metrics import MetricsPage
from pgmta.metrics import metrics_server
from pgmta.metrics.metrics_server import MAX_CONNECTIONS, MetricsServer
from tests.support.waiting import PATIENCE, free_port

PATHS = {"/metrics": b"figures\n" * 200_000, "/healthz": b"alive\n", "/readyz": b"ready\n"}
BEGINS = [
    b"",
    b"GET /metrics HTTP/1.1\r\n",
    b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n",  # an idle one, whose client stays
    b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n",  # its answer is more than the client takes
    b"GET /healthz HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n",
]


async def _scrape(_: bool = True) -> bytes:
    return PATHS["/metrics"]


async def _ready() -> str:
    return ""


@asynccontextmanager
async def _serving() -> AsyncIterator[int]:
    port = free_port()
    settings = MetricsPage.model_validate({"listen": f"127.0.0.1:{port}"})
    server = MetricsServer("queued", settings, _scrape, _ready)
    await server.start()
    try:
        yield port
    finally:
        await server.stop()


async def _ask(port: int, octets: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(octets)
    try:
        async with asyncio.timeout(PATIENCE):
            return await reader.read()  # the server ends the connection
    finally:
        writer.close()


async def _probe(port: int) -> None:
    for path, body in PATHS.items():
        answer = await _ask(port, f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        assert answer.startswith(b"HTTP/1.1 200 "), path
        assert answer.endswith(b"\r\n\r\n" + body), path


async def _keep_places(begin: bytes, seconds: float | None) -> None:
    async with _serving() as port:
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(100)]
        for _, writer in held:
            writer.write(begin)
        await _probe(port)
        if seconds:  # they end by themselves
            ends = [reader.read() for reader, _ in held[-MAX_CONNECTIONS // 2 :]]
            await asyncio.wait_for(asyncio.gather(*ends, return_exceptions=True), PATIENCE)
        for _, writer in held:
            writer.close()
        await _probe(port)


@pytest.mark.parametrize("seconds", [None, 0.5])
@pytest.mark.parametrize("begin", BEGINS)
def test_no_client_keeps_a_place(
    begin: bytes, seconds: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if seconds:
        monkeypatch.setattr(metrics_server, "CONNECTION_S", seconds)
    asyncio.run(_keep_places(begin, seconds))


BAD = [
    b"\x16\x03\x01secret\r\n\r\n",
    b"GET /secret HTTP/9\r\n\r\n",
    b"GET / HTTP/1.1\r\nsecret header\r\n\r\n",
    b"GET http://xn--secret/ HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n",
]


async def _send_bad_ones() -> None:
    async with _serving() as port:
        for octets in BAD:
            assert (await _ask(port, octets)).startswith(b"HTTP/1.0 400 ")
        assert (await _ask(port, b"POST /metrics HTTP/1.1\r\nHost: a\r\n\r\n"))[9:12] == b"405"
        assert (await _ask(port, b"GET /secret HTTP/1.1\r\nHost: a\r\n\r\n"))[9:12] == b"404"


def test_bad_requests_are_lines_of_the_log_without_their_octets(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with capture_logs() as lines:
        asyncio.run(_send_bad_ones())
    refused = [line for line in lines if line["event"] == "a request was refused"]
    assert len(refused) == len(BAD)
    assert {line["client"] for line in refused} == {"127.0.0.1"}
    assert "secret" not in str(lines)
    assert capfd.readouterr() == ("", "")
