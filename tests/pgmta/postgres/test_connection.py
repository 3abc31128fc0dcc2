"""The connection that takes answers in the socket's callback."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
from pathlib import Path

import psycopg
import pytest
import uvloop
from psycopg.pq import TransactionStatus

from pgmta.errors import AnswerLost, StoreUnavailable
from pgmta.postgres.link import Link, connect
from pgmta.postgres.operator import connected
from tests.support.database import PrivateServer
from tests.support.waiting import PATIENCE, eventually, let_others_run, until


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def runner(request: pytest.FixtureRequest) -> asyncio.Runner:
    """Both kinds of loop: the daemons use uvloop."""
    return asyncio.Runner(loop_factory=request.param)


def running(db: psycopg.Connection) -> list[str]:
    """Statements of a Link that the server works on."""
    rows = db.execute(
        "SELECT query FROM pg_stat_activity WHERE application_name = 'pgmta test'"
        " AND state = 'active' AND datname = current_database()"
    )
    return [row[0] for row in rows]


def test_answers_of_many_sizes(database: str, runner: asyncio.Runner) -> None:
    async def work() -> None:
        links = [Link(database, "test") for _ in range(3)]

        async def ask(link: Link) -> None:
            for size in (0, 1, 8191, 100_000, 5_000_000):
                rows = await link.run(
                    "SELECT n, repeat('x', %(size)s)::bytea FROM generate_series(1, 3) AS n",
                    {"size": size},
                )
                assert [(n, len(data)) for n, data in rows] == [(n, size) for n in (1, 2, 3)]
            big = b"\0" * 5_000_000  # more than the socket takes at once
            assert await link.run("SELECT length(%(big)s)", {"big": big}) == [(len(big),)]
            with pytest.raises(psycopg.errors.DivisionByZero):
                await link.run("SELECT 1 / %(zero)s::int", {"zero": 0})

        await asyncio.gather(*map(ask, links))
        for link in links:
            await link.close()

    with runner:
        runner.run(work())


def test_a_statement_whose_caller_goes_is_ended(
    database: str, db: psycopg.Connection, runner: asyncio.Runner
) -> None:
    async def work() -> None:
        link = Link(database, "test")
        task = asyncio.create_task(link.run("SELECT pg_sleep(600)"))
        await eventually(lambda: running(db))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await eventually(lambda: not running(db))
        assert await link.run("SELECT 1") == [(1,)]
        await link.close()

    with runner:
        runner.run(work())


def test_connections_that_break_together_come_back(
    database: str, db: psycopg.Connection, runner: asyncio.Runner
) -> None:
    """Their sockets' numbers are taken by the next ones at once."""

    async def work() -> None:
        links = [Link(database, "test") for _ in range(6)]

        async def ask(link: Link) -> None:
            for _ in range(5):
                with pytest.raises(StoreUnavailable):
                    await link.run("SELECT pg_sleep(600)")
                assert await link.run("SELECT 1") == [(1,)]

        async def cut() -> None:
            ended: set[int] = set()  # they stay in the list for a moment

            def asleep() -> set[int]:
                asleep = "SELECT pid FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(600)'"
                rows = db.execute(asleep + " AND datname = current_database()").fetchall()
                pids = {pid for (pid,) in rows} - ended
                return pids if len(pids) == len(links) else set()

            for _ in range(5):
                pids = await eventually(asleep)
                ended |= pids
                db.execute("SELECT pg_terminate_backend(pid) FROM unnest(%s) AS pid",
                           (list(pids),))  # fmt: skip

        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(cut(), *map(ask, links))
        for link in links:
            await link.close()

    with runner:
        runner.run(work())


@pytest.mark.slow
def test_a_server_that_dies_with_a_statement_unread(
    private_server: PrivateServer, runner: asyncio.Runner
) -> None:
    """Its last words and the reset of the connection come together: libuv reports them once."""

    async def work() -> None:
        connection = await connect(private_server.uri, "test")
        await connection.execute("LISTEN words")
        process = Path(f"/proc/{connection.info.backend_pid}")
        with psycopg.connect(private_server.uri, autocommit=True) as other:
            other.execute("NOTIFY words")
        # no task reads it while no statement is under way
        assert select.select([connection], [], [], PATIENCE)[0]
        os.kill(connection.info.backend_pid, signal.SIGSTOP)
        until(lambda: ") T " in (process / "stat").read_text())
        statement = asyncio.create_task(connection.execute("SELECT 1"))
        while connection.info.transaction_status != TransactionStatus.ACTIVE:
            await let_others_run()
        os.kill(connection.info.backend_pid, signal.SIGKILL)
        until(lambda: not process.exists())  # in which time the loop sees nothing
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(psycopg.OperationalError):
                await statement
        await connection.close()

    with runner:
        runner.run(work())


@pytest.mark.slow
def test_of_several_servers_the_one_that_takes_writes_is_used(
    private_server: PrivateServer, other_server: PrivateServer
) -> None:
    """Also where that changes, though no connection breaks."""
    servers = [private_server, other_server]
    given = [psycopg.conninfo.conninfo_to_dict(server.uri) for server in servers]
    hosts = ",".join(str(one["host"]) for one in given)
    uri = psycopg.conninfo.make_conninfo(private_server.uri, host=hosts)
    for number, server in enumerate(servers):
        with psycopg.connect(server.uri, autocommit=True) as db:
            db.execute("CREATE TABLE place AS SELECT %s AS number", (number,))

    async def work() -> None:
        link = Link(uri, "test")
        for number in range(2 * len(servers)):
            servers[(number + 1) % 2].read_only(True)
            if number:
                with pytest.raises(StoreUnavailable) as failure:
                    await link.run("UPDATE place SET number = number")
                assert not isinstance(failure.value, AnswerLost)
            assert await link.run("UPDATE place SET number = number RETURNING number") == [
                (number % 2,)
            ]
            async with connected(uri) as db:
                assert await db.row("SELECT number FROM place") == {"number": number % 2}
            servers[(number + 1) % 2].read_only(False)
        await link.close()
        for server in servers:
            server.read_only(True)
        async with connected(uri) as db:  # to look at, any will do
            assert await db.row("SHOW transaction_read_only")

    asyncio.run(work())


async def test_what_was_under_way_on_a_lost_connection_ends(
    database: str, db: psycopg.Connection
) -> None:
    link, other = Link(database, "test"), Link(database, "test")
    db.execute("CREATE TABLE t (n int)")
    with psycopg.connect(database) as blocker:
        blocker.execute("LOCK TABLE t")
        task = asyncio.create_task(link.run("INSERT INTO t VALUES (1)"))
        await eventually(lambda: link._connection and running(db))
        assert link._connection
        backend = link._connection.backend
        with socket.socket(fileno=os.dup(link._connection.pgconn.socket)) as cut:
            cut.shutdown(socket.SHUT_RDWR)
        with pytest.raises(AnswerLost) as failure:
            await task
        assert failure.value.backend == backend
        assert running(db)  # and would commit as soon as it has the lock
        lost = [backend]
        await other.end_backends(lost)
        assert lost == []
    assert db.execute("SELECT * FROM t").fetchall() == []
    for one in (link, other):
        await one.close()


@pytest.mark.slow
def test_a_connection_that_broke_before_is_not_used(private_server: PrivateServer) -> None:
    """Otherwise the caller could not know whether the statement was done."""

    async def work() -> None:
        link = Link(private_server.uri, "test")
        await link.run("SELECT 1")
        private_server.crash()
        with pytest.raises(StoreUnavailable) as failure:
            await link.run("SELECT 1")
        assert not isinstance(failure.value, AnswerLost)
        private_server.start()
        await link.run("SELECT 1")
        private_server.crash()
        private_server.start()
        await link.run("SELECT 1")
        await link.close()

    asyncio.run(work())


def test_an_unused_connection_is_closed(database: str, runner: asyncio.Runner) -> None:
    """It is made again at the next use; one that works or was used meanwhile stays."""

    async def work() -> None:
        link = Link(database, "test")
        open_then = []
        await link.run("SELECT 1")
        await link.close_unused()
        open_then.append(link.connected)
        slow = asyncio.create_task(link.run("SELECT pg_sleep(0.2), 1"))
        await eventually(lambda: link.busy)
        await link.close_unused()
        assert len(await slow) == 1
        await link.close_unused()
        open_then.append(link.connected)
        assert await link.run("SELECT 1") == [(1,)]
        assert [*open_then, link.connected] == [True, False, True]
        await link.close()

    with runner:
        runner.run(work())
