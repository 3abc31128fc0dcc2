"""A connection string with several hosts: which is asked first, and who leaves a former primary."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgmta.errors import StoreUnavailable
from pgmta.postgres import primary
from pgmta.postgres.link import Link
from pgmta.postgres.link_connection import LinkConnection
from pgmta.postgres.notify import News, listen
from pgmta.postgres.operator import connected
from pgmta.postgres.primary import writable
from pgmta.postgres.resources import Resources
from tests.support.cutting import CuttingProxy
from tests.support.waiting import PATIENCE, eventually


class Host:
    """A way to the server under test that may be shut, after which its connections go on."""

    def __init__(self, proxy: CuttingProxy, server: asyncio.Server) -> None:
        self.place = conninfo_to_dict(proxy.uri)
        self.proxy, self.server = proxy, server


@asynccontextmanager
async def hosts(uri: str, number: int) -> AsyncIterator[tuple[str, list[Host]]]:
    """A connection string with several hosts, all of which are the same server."""
    async with AsyncExitStack() as stack:
        made = []
        for _ in range(number):
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            proxy = CuttingProxy(uri, Path(folder), b"")
            server = await proxy.start()
            stack.push_async_callback(proxy.end)
            stack.callback(server.close)
            made.append(Host(proxy, server))
        fields = {
            field: ",".join(str(host.place[field]) for host in made) for field in ("host", "port")
        }
        yield make_conninfo(made[0].proxy.uri, **fields), made


def first(uri: str) -> str:
    """Port of the host that is asked first."""
    return str(conninfo_to_dict(writable(uri))["port"]).split(",")[0]


async def by_link(uri: str) -> None:
    link = Link(uri, "test")
    try:
        await link.run("SELECT 1")
    finally:
        await link.close()


async def by_operator(uri: str) -> None:
    async with connected(uri) as db:
        await db.row("SELECT 1")


@pytest.mark.parametrize("use", [by_link, by_operator])
async def test_the_last_primary_is_asked_first(
    database: str, use: Callable[[str], Awaitable[None]]
) -> None:
    async with hosts(database, 3) as (uri, (one, two, three)):
        ports = [str(host.place["port"]) for host in (one, two, three)]
        one.server.close()
        two.server.close()
        await by_link(uri)
        order = str(conninfo_to_dict(writable(uri))["port"]).split(",")
        assert order == [ports[2], *ports[:2]]
        await use(uri)
        three.server.close()
        with pytest.raises(StoreUnavailable):
            await by_link(uri)
        assert str(conninfo_to_dict(writable(uri))["port"]).split(",") == ports


async def test_who_finds_another_primary_takes_all_others_there(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The former one keeps its connections, and would never say a word again."""
    news, found = News(), primary.found

    def found_there(uri: str, connection: LinkConnection, timeline: int) -> None:
        found(uri, connection, timeline + connection.info.port)  # as if each were promoted

    monkeypatch.setattr(primary, "found", found_there)
    async with hosts(database, 2) as (uri, (former, other)):
        link, task = Link(uri, "test"), asyncio.create_task(listen(Resources(uri, "x"), [], news))
        await link.run("SELECT 1")
        await eventually(lambda: news.heard)
        assert first(uri) == former.place["port"]
        former.server.close()
        await by_link(uri)
        assert first(uri) == other.place["port"]
        await eventually(lambda: not news.heard)
        await eventually(lambda: news.heard)
        async with asyncio.timeout(PATIENCE):
            assert await link.run("SELECT 1") == [(1,)]
        assert len(other.proxy._writers) >= 3 * 2
        task.cancel()
        await asyncio.wait([task])
        await link.close()


async def test_two_names_of_one_server_are_one(database: str) -> None:
    async with hosts(database, 2) as (uri, (former, other)):
        link = Link(uri, "test")
        ((before,),) = await link.run("SELECT pg_backend_pid()")
        former.server.close()
        await by_link(uri)
        assert first(uri) == other.place["port"]
        assert await link.run("SELECT pg_backend_pid()") == [(before,)]
        await link.close()


def test_what_the_connection_string_says_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = conninfo_to_dict(writable("host=a,b keepalives_idle=7 target_session_attrs=any"))
    assert silent["keepalives_idle"] == "7"
    assert silent["tcp_user_timeout"] == "10000"
    assert silent["target_session_attrs"] == "any"
    assert "target_session_attrs" not in conninfo_to_dict(writable("host=a"))
    assert conninfo_to_dict(writable("service=a"))["target_session_attrs"] == "read-write"
    monkeypatch.setenv("PGHOST", "a,b")
    monkeypatch.setenv("PGPORT", "1,2")
    given = conninfo_to_dict(writable("dbname=x"))
    assert (given["host"], given["port"]) == ("a,b", "1,2")
    assert given["target_session_attrs"] == "read-write"


async def test_a_silent_host_keeps_nobody_from_the_one_that_is_promoted(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One search asks, for all connections of the process, and asks again meanwhile."""
    monkeypatch.setattr(primary, "_SEARCH_INTERVAL_S", 0.01)
    async with hosts(database, 3) as (uri, (former, standby, other)):
        uri = make_conninfo(uri, connect_timeout=3600)
        await by_link(uri)
        asked = primary.writable(uri)
        primary.missed(uri, asked)
        former.proxy._dark = True
        standby.server.close()
        other.server.close()
        before = len(former.proxy._writers)
        asking = [asyncio.create_task(by_link(uri)) for _ in range(5)]
        await eventually(lambda: len(former.proxy._writers) > before)  # all others have failed
        async with asyncio.timeout(PATIENCE), await other.proxy.start():
            await asyncio.gather(*asking)
            primary.missed(uri, asked)  # by one that asked the former primary, and waited for it
            assert first(uri) == other.place["port"]
        assert len(former.proxy._writers) == before + 1
        assert len(other.proxy._writers) <= 2 * (5 + 1)


async def test_a_search_that_nobody_waits_for_ends(database: str) -> None:
    async with hosts(database, 2) as (uri, (former, other)):
        uri = make_conninfo(uri, connect_timeout=3600)
        primary.missed(uri, primary.writable(uri))
        former.proxy._dark = other.proxy._dark = True
        asking = [asyncio.create_task(by_link(uri)) for _ in range(2)]
        await eventually(lambda: former.proxy._writers, 4)
        for task in asking:
            task.cancel()
        await asyncio.wait(asking)
        del asking, task  # their tracebacks have the search
        (silent,) = former.proxy._writers

        def closed() -> bool:
            silent.write(b"?")  # a peer that has only ended its side does not show
            return silent.transport.is_closing()

        await eventually(closed, 4)
        assert not primary._searches
