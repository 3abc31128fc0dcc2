"""The page of figures has few connections, so that deliveries keep their descriptors."""

from __future__ import annotations

import asyncio

import pytest

from pgmta.config.metrics import MetricsPage
from pgmta.metrics import metrics_server
from pgmta.metrics.metrics_server import MetricsServer
from tests.support.waiting import free_port


async def _page(_: bool = True) -> bytes:
    return b"figures\n"


async def _ready() -> str:
    return ""


async def _get(port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    try:
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def _many(port: int) -> None:
    settings = MetricsPage.model_validate({"listen": f"127.0.0.1:{port}"})
    server = MetricsServer("queued", settings, _page, _ready)
    await server.start()
    held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(100)]
    for _, writer in held:
        writer.write(b"GET /metrics HTTP/1.1\r\n")  # and no more
    assert await _get(port) == b""
    ends = [reader.read() for reader, _ in held]
    ended = await asyncio.wait_for(asyncio.gather(*ends, return_exceptions=True), 30)
    assert all(isinstance(end, ConnectionError) or not end for end in ended)
    for _, writer in held:
        writer.close()
    assert (await _get(port)).endswith(b"figures\n")
    await server.stop()


def test_silent_connections_are_few_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_server, "_FIRST", 1.0)
    asyncio.run(_many(free_port()))
