"""The server of our listeners: what a route says of itself holds, whatever the segments."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from unittest.mock import patch

import pytest
from aiohttp import web

from pgmta.http import server as server_module
from pgmta.http.answers import TEXT_TYPE, HttpAnswers, HttpError
from pgmta.http.request_body import read_octets
from pgmta.http.route import HttpLimits, Route
from pgmta.http.server import HttpServer, bind
from pgmta.http.site import HttpSite
from tests.support.waiting import PATIENCE, free_port, take_time, take_time_async

ANSWERS = HttpAnswers()
LARGE = 1 << 20


async def measure(request: web.Request) -> web.Response:
    return ANSWERS.make(str(len(await read_octets(request))).encode(), TEXT_TYPE)


def page(_: web.Request, error: HttpError) -> web.Response:
    return ANSWERS.make(b"a page", TEXT_TYPE, error.status)


SITE = HttpSite(
    (
        Route("POST", "/small", measure),
        Route("POST", "/large/{name}", measure, max_body=LARGE),
        Route("POST", "/form", measure, page=True),
    ),
    HttpLimits(connections=10, request_s=PATIENCE, idle_s=PATIENCE, max_body=100),
    base="/mail",
    error_page=page,
)


@asynccontextmanager
async def serving(site: HttpSite) -> AsyncIterator[tuple[HttpServer, int]]:
    server, port = HttpServer("test"), free_port()
    await server.serve(site)
    await server.listen(bind("127.0.0.1", port))
    try:
        yield server, port
    finally:
        await server.stop(1.0)


async def ask(port: int, path: str, size: int, *, method: str = "POST") -> tuple[int, bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\nConnection: close"
    writer.write(f"{head}\r\n\r\n".encode() + b"x" * size)
    try:
        async with asyncio.timeout(PATIENCE):
            answer, _, body = (await reader.read()).partition(b"\r\n\r\n")
    finally:
        writer.close()
    return int(answer.split(b" ", 2)[1]), body


async def test_a_body_without_a_length_has_the_limit_of_its_route() -> None:
    chunk = b"8000\r\n" + b"x" * 0x8000 + b"\r\n"
    async with serving(SITE) as (_, port):
        for number, status in [(LARGE // 0x8000, b" 200 "), (LARGE // 0x8000 + 1, b" 413 ")]:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            head = b"POST /large/a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
            writer.write(head + chunk * number + b"0\r\n\r\n")
            answer = await asyncio.wait_for(reader.readline(), PATIENCE)
            assert status in answer
            writer.close()


async def test_a_body_is_asked_for_only_if_it_may_come() -> None:
    async with serving(SITE) as (_, port):
        for size, expect, status in [
            (100, "100-continue", 100), (101, "100-continue", 413), (101, "", 413),
            (100, "magic", 417),
        ]:  # fmt: skip
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            field = f"Expect: {expect}\r\n" if expect else ""
            head = f"POST /small HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n{field}\r\n"
            writer.write(head.encode())  # and no octet of the body
            async with asyncio.timeout(PATIENCE):
                answer = await reader.readuntil(b"\r\n\r\n")
                assert answer.startswith(f"HTTP/1.1 {status} ".encode())
                if status == 100:
                    writer.write(b"x" * size)
                    assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
                else:
                    assert b"\r\nconnection: close\r\n" in answer.lower()
            writer.close()


async def test_a_stall_of_the_server_is_no_silence_of_its_clients() -> None:
    limits = replace(SITE.limits, request_s=0.5)
    with patch.object(server_module, "_SWEEP_INTERVAL_S", 0.1):
        async with serving(replace(SITE, limits=limits)) as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"POST /small HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n")
            await take_time_async(0.2)
            writer.write(b"x" * 100)
            take_time(0.6)
            answer = await asyncio.wait_for(reader.readline(), PATIENCE)
            assert answer.startswith(b"HTTP/1.1 200 ")
            writer.close()


@pytest.mark.parametrize("base", ["", "/mail"])
async def test_a_route_has_its_own_limit_of_a_body(base: str) -> None:
    async with serving(SITE) as (_, port):
        assert await ask(port, f"{base}/small", 100) == (200, b"100")
        assert (await ask(port, f"{base}/small", 101))[0] == 413
        assert await ask(port, f"{base}/large/a?b=/small", LARGE) == (200, str(LARGE).encode())


async def test_errors_are_problems_except_those_of_pages() -> None:
    async with serving(SITE) as (server, port):
        status, body = await ask(port, "/small", 101)
        assert (status, json.loads(body)["status"]) == (413, 413)
        assert await ask(port, "/form", 101) == (413, b"a page")
        for path, method, code in [("/none", "POST", 404), ("/small", "PUT", 405)]:
            status, body = await ask(port, path, 0, method=method)
            assert (status, json.loads(body)["status"]) == (code, code)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for site, answer in [(SITE, b" 404 "), (HttpSite((Route("POST", "/new", measure),),
                                                         SITE.limits), b" 200 ")]:  # fmt: skip
            await server.serve(site)  # a connection that is open has the new routes too
            writer.write(b"POST /new HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
            assert answer in (await asyncio.wait_for(reader.read(4096), PATIENCE))[:20]
        writer.close()
