"""Exactly one copy of each mail, whatever becomes of connections and of PostgreSQL."""

from __future__ import annotations

import asyncio
import random
import socket

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgmta import (
    Client,
    Mail,
    NotBegun,
    StoreUnavailable,
    SubmissionError,
    Undecided,
    enqueue,
)
from tests.pgmta.client.test_client import CALLS, mail, subjects
from tests.support.cutting import cutting
from tests.support.database import PrivateServer
from tests.support.rows import column
from tests.support.waiting import eventually, let_others_run, take_time_async

_KILL = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE application_name LIKE 'pgmta client mails%' AND datname = current_database()
"""


def exactly(db: psycopg.Connection, ids: list[int], mails: list[Mail]) -> bool:
    """Whether the mail is stored once each, under these ids, and no other is."""
    return subjects(db) == sorted(
        (number, each.subject) for number, each in zip(ids, mails, strict=True)
    )


async def test_an_answer_that_is_lost_is_asked_for_again(
    database: str, db: psycopg.Connection
) -> None:
    """The connection ends before PostgreSQL has the call, or after its commit, at any call."""
    async with cutting(database) as proxy, Client(proxy.uri, connections=2) as client:
        ids, mails = [], []
        for plan in (["before"], ["after"], ["after", "before", "after", "after"], ["before"] * 3):
            proxy.plan += plan
            mails.append(mail(f"cut here {plan}"))
            ids.append(await client.send(mails[-1]))
            assert not proxy.plan
        proxy.plan += ["after", "before", "after"]
        many = [mail(f"cut here {n}") for n in range(1_200)]
        found = await client.send_many(many)
        ids += [each.id or 0 for each in found]
        assert len(proxy.done) == 1 + 1 + 4 + 3 + 3
        assert exactly(db, ids, mails + many)


async def test_a_call_whose_callers_have_gone_is_not_made_anew(
    database: str, db: psycopg.Connection
) -> None:
    async with cutting(database) as proxy, Client(proxy.uri, connections=1) as client:
        await client.send(mail("first"))
        proxy.plan += ["after"] * 3  # so that the client pauses
        tasks = [asyncio.create_task(client.send(mail(f"cut here {n}"))) for n in range(3)]
        await eventually(lambda: len(proxy.done) == 3)
        for task in tasks:
            task.cancel()
        await client.send(mail("last"))
    names = ["Mail first", *[f"Mail cut here {n}" for n in range(3)], "Mail last"]
    assert [name for _, name in subjects(db)] == names


@pytest.mark.slow
async def test_the_end_of_patience_says_what_is_known(
    database: str, db: psycopg.Connection
) -> None:
    async with cutting(database) as proxy, Client(proxy.uri, patience=0.5) as client:
        ids = [await client.send(mail())]
        proxy.plan += ["silent"]
        with pytest.raises(Undecided):
            await client.send(mail("cut here"))
        assert [name for _, name in subjects(db)] == ["Mail 0", "Mail cut here"]  # it was stored
        proxy.plan += ["after"] * 1000
        for each in await client.send_many([mail("cut here, too"), mail("with it")]):
            assert isinstance(each.error, Undecided)
        proxy.plan = ["before"] * 1000
        with pytest.raises(Undecided):  # the client can't know that PostgreSQL has not got it
            await client.send(mail("cut here before"))
        proxy.plan.clear()
        ids.append(await client.send(mail("last")))
        stored = [name for _, name in subjects(db)]
        assert stored.count("Mail cut here, too") == stored.count("Mail with it") == 1
        assert "Mail cut here before" not in stored


async def test_a_lost_answer_stays_open_when_the_network_goes(
    database: str, db: psycopg.Connection
) -> None:
    """The last attempt of a call sends nothing, but an earlier one has."""
    async with cutting(database) as proxy, Client(proxy.uri, patience=0.5) as client:
        await client.send(mail())
        proxy.plan += ["dark"]
        with pytest.raises(Undecided):
            await client.send(mail("cut here"))
        assert [name for _, name in subjects(db)] == ["Mail 0", "Mail cut here"]


async def test_a_lost_answer_stays_open_when_the_login_loses_its_rights(
    database: str, db: psycopg.Connection
) -> None:
    uri = make_conninfo(database, options="-c role=pgmta_submit")
    async with cutting(uri) as proxy, Client(proxy.uri) as client:
        await client.send(mail())
        proxy.plan += ["after"] * 1000
        call = asyncio.create_task(client.send(mail("cut here")))
        await eventually(lambda: bool(proxy.done))
        db.execute("REVOKE EXECUTE ON FUNCTION submit_mails FROM pgmta_submit")
        proxy.plan.clear()
        with pytest.raises(Undecided):
            await call
        assert len(subjects(db)) == 2


@pytest.mark.slow
async def test_a_program_that_cancels_all_tasks(database: str, db: psycopg.Connection) -> None:
    """asyncio.run() does so at its end; tasks that wait for an answer in a shield get one."""
    async with cutting(database) as proxy, asyncio.timeout(20):
        client = Client(proxy.uri, connections=1)
        await client.send(mail())
        proxy.plan += ["silent"]
        begun = asyncio.ensure_future(client.send(mail("cut here")))
        await eventually(lambda: bool(proxy.done))
        waits = asyncio.ensure_future(client.send(mail("waits")))
        await let_others_run(3)
        mine = {asyncio.current_task(), begun, waits}
        others = [task for task in asyncio.all_tasks() if "Gatherer" in repr(task.get_coro())]
        assert others
        for task in set(others) - mine:
            task.cancel()
        found = await asyncio.gather(begun, waits, return_exceptions=True)
        assert [type(each) for each in found] == [Undecided, NotBegun]
        await client.close()
        assert len(subjects(db)) == 2


async def test_a_server_that_says_nothing_has_got_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        async with Client(f"postgresql://x@127.0.0.1:{port}/x", patience=0.3) as client:
            with pytest.raises(StoreUnavailable, match="in time") as away:
                await client.send(mail())
    assert not isinstance(away.value, Undecided)


async def test_a_lock_that_stays_is_no_open_question(database: str, db: psycopg.Connection) -> None:
    """PostgreSQL ends the statement itself, so nothing is stored."""
    async with Client(database, patience=0.5) as client:
        await client.send(mail())
        with psycopg.connect(database) as other:
            other.execute("LOCK TABLE messages IN SHARE MODE")
            calls = [client.send(mail("locked")) for _ in range(3)]
            for error in await asyncio.gather(*calls, return_exceptions=True):
                assert isinstance(error, StoreUnavailable)
                assert not isinstance(error, Undecided)
        assert len(subjects(db)) == 1


WAITS = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock'"


@pytest.mark.slow
async def test_a_key_of_an_open_transaction_delays_its_own_mail_alone(
    database: str, db: psycopg.Connection
) -> None:
    async with Client(database, connections=1, patience=20) as client:
        with psycopg.connect(database) as other:
            first = enqueue(other, mail("keyed", key="4711"))
            keyed = [asyncio.create_task(client.send(mail("keyed", key="4711")))]
            keyed.append(asyncio.create_task(client.send(mail("else", key="4711"))))
            for _ in range(3):  # beside it, and while it is tried again
                await asyncio.gather(*(client.send(mail(n)) for n in range(50)))
                assert not any(task.done() for task in keyed)
                await take_time_async(0.7)
        assert await keyed[0] == first
        with pytest.raises(SubmissionError, match="key: it was used for another message"):
            await keyed[1]
        assert len(subjects(db)) == 151
        with psycopg.connect(database) as other:
            enqueue(other, mail("keyed", key="4712"))
            keyed = [asyncio.create_task(client.send(mail("late", key="4712")))]
            await eventually(lambda: bool(column(db, WAITS)))
            await client.close()
            with pytest.raises((NotBegun, StoreUnavailable)) as ended:
                await keyed[0]
            assert type(ended.value) in (NotBegun, StoreUnavailable)


class Senders:
    """20 tasks that send one mail after the other until the end."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._going = True
        self.ids: dict[int, int] = {}
        self.mails: list[Mail] = []
        self._tasks = [asyncio.create_task(self._send()) for _ in range(20)]

    async def _send(self) -> None:
        while self._going:
            number = len(self.mails)
            self.mails.append(mail(number))
            self.ids[number] = await self._client.send(self.mails[number])

    async def more(self, number: int) -> None:
        """Return after `number` further calls."""
        wanted = len(self.ids) + number
        await eventually(
            lambda: len(self.ids) >= wanted or any(task.done() for task in self._tasks)
        )

    async def end(self) -> None:
        """End them. Raises the error of one that has failed."""
        self._going = False
        await asyncio.gather(*self._tasks)

    def exactly(self, db: psycopg.Connection) -> bool:
        """Whether each mail is stored once, under its id."""
        return exactly(db, [self.ids[n] for n in range(len(self.mails))], self.mails)


@pytest.mark.slow
async def test_killed_sessions(database: str, db: psycopg.Connection) -> None:
    """Connections are ended again and again, mostly in a call."""
    chance = random.Random(28)
    async with Client(database) as client:
        senders = Senders(client)
        killed = 0
        for _ in range(60):
            await senders.more(chance.randrange(30))
            killed += (await asyncio.to_thread(column, db, _KILL))[0]
        await senders.end()
    assert killed >= 30
    assert senders.exactly(db)
    assert column(db, CALLS)[0] < len(senders.mails)


@pytest.mark.slow
async def test_postgresql_crashes_and_stops(private_server: PrivateServer) -> None:
    async with Client(private_server.uri, patience=60) as client:
        senders = Senders(client)
        for end in (private_server.crash, private_server.stop):
            await senders.more(100)
            await asyncio.to_thread(end)
            await let_others_run(100)
            await asyncio.to_thread(private_server.start)
        await senders.more(100)
        await senders.end()
        await asyncio.to_thread(private_server.stop)
        with pytest.raises(StoreUnavailable) as away:
            async with Client(private_server.uri, patience=0.2) as other:
                await other.send(mail())
        assert not isinstance(away.value, Undecided)
        await asyncio.to_thread(private_server.start)
        with psycopg.connect(private_server.uri) as db:
            db.execute("SET search_path = pgmta")
            assert senders.exactly(db)
            assert column(db, "SELECT count(*) FROM queue") == [len(senders.mails)]


@pytest.mark.slow
async def test_a_server_that_is_read_only_for_a_while(private_server: PrivateServer) -> None:
    async with (
        Client(private_server.uri, patience=60) as patient,
        Client(private_server.uri, patience=0.3) as hasty,
    ):
        first = await patient.send(mail("first"))
        await asyncio.to_thread(private_server.read_only, True)
        waits = asyncio.create_task(patient.send(mail("waits")))
        many = asyncio.create_task(patient.send_many([mail("many"), mail(to=["bad"])]))
        with pytest.raises(StoreUnavailable, match="read-only") as away:
            await hasty.send(mail("hasty"))
        assert not isinstance(away.value, Undecided)
        assert (await hasty.status([first])).keys() == {first}
        await asyncio.to_thread(private_server.read_only, False)
        ids = [first, await waits, (await many)[0].id]
        with psycopg.connect(private_server.uri) as db:
            db.execute("SET search_path = pgmta")
            assert subjects(db) == sorted(
                zip(ids, ["Mail first", "Mail waits", "Mail many"], strict=True)
            )
