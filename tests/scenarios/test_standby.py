"""Whatever says that mail is stored has a standby's word for it, so a failover loses none.

The doubt is made in the three ways that there are: the session ends during its wait for the
standby, its connection breaks, or the wait is cancelled, which looks like a success.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg  # type: ignore[import-untyped]
import psycopg
import pytest
import sqlalchemy
import yaml
from click.testing import CliRunner
from django.db import connections
from psycopg.conninfo import make_conninfo
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from structlog.testing import capture_logs

import pgmta
from pgmta.errors import AnswerLost, StoreUnavailable, Undecided
from pgmta.model import Outcome, Reply
from pgmta.postgres.link import Link
from pgmta.postgres.link_connection import LinkConnection
from pgmta.states import Event
from pgmta.store.queue.claim import Claims
from pgmta.store.queue.lease import RowLeases
from pgmta.store.queue.settle import Settlements
from pgmta_features.lifecycle.installation import install
from queued.cli.queuectl import main as queuectl
from queued.worker.leases import Leases
from queued.worker.settler import Settler
from tests.frameworks.django_settings import django_on
from tests.pgmta.client.test_client import mail as letter
from tests.smtpd.server.test_commits import SMALL, send
from tests.support.cutting import cutting
from tests.support.loop_thread import LoopThread
from tests.support.rows import message, row
from tests.support.serving import Client, serving
from tests.support.standby import Pair, replicated
from tests.support.waiting import PATIENCE, eventually, let_others_run, until

pytestmark = pytest.mark.slow
DOUBTS = ("terminated", "cut", "cancelled")
Doubt = Callable[[], None]
SUBMIT = """
SELECT pgmta.submit('shop@a.example', '{r@b.example}', 'Subject: x\r\n\r\nx\r\n', key => '%s')
"""
MAILS = """
SELECT ids[1] FROM pgmta.submit_mails(
    '[{"sender": "shop@a.example", "to": ["r@b.example"], "subject": "x", "body": "x"}]',
    call => '%s')
"""


@pytest.fixture
def pair(server: str) -> Iterator[Pair]:
    """Servers of the release under test, of which the first may be lost."""
    with replicated(server) as made:
        yield made


@contextmanager
def doubting(pair: Pair, kind: str) -> Iterator[tuple[str, Doubt]]:
    """The URI for a program, and a function that puts its commit in doubt while that waits."""
    if kind != "cut":
        yield pair.either, pair.terminate if kind == "terminated" else pair.cancel
        return
    thread = LoopThread()
    try:
        proxied = cutting(pair.uri)
        proxy = thread.do(proxied.__aenter__())

        def cut() -> None:
            pair.waiting()
            thread.do(proxy.cut())

        yield proxy.uri, cut
        thread.do(proxied.__aexit__(None, None, None))
    finally:
        thread.end()


def stored(db: psycopg.Connection) -> set[int]:
    return {number for (number,) in db.execute("SELECT id FROM pgmta.messages")}


@pytest.mark.parametrize("kind", DOUBTS)
def test_no_client_gets_250_without_the_standby(pair: Pair, kind: str) -> None:
    told: list[int] = []
    with (
        doubting(pair, kind) as (uri, doubt),
        serving(uri, ingest={"wait": "2s"}) as port,
        ExitStack() as stack,
    ):

        def mail() -> Client:
            client = stack.enter_context(Client(port))
            send(client, SMALL)
            return client

        def answer(client: Client) -> str:
            reply = client.reply()
            if reply[:3] == "250":
                told.append(int(reply.split()[2]))
            return reply[:3]

        assert answer(mail()) == "250"
        with pair.frozen():
            client = mail()
            doubt()
            assert answer(client) == "451"
        with pair.frozen():
            client = mail()
            doubt()
        assert answer(client) == "250"
        if kind != "cut":  # the proxy leads to the first server alone
            pair.freeze()
            client = mail()
            doubt()
            pair.fail_over()
            # a failover may take longer than ingest.wait
            assert answer(client) in ("250", "451")
            assert len(told) >= 2
    if kind == "cut":
        pair.fail_over()
    assert set(told) <= stored(pair.db)


def test_a_standby_behind_its_primary_is_not_asked_what_became_of_a_commit(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One address leads to it before its promotion; it has the mail, and does not show it yet."""
    asked, look = threading.Event(), Link.look

    async def look_there(link: Link, *statement: Any) -> list[tuple[Any, ...]]:
        try:
            return await look(link, *statement)
        except StoreUnavailable as error:
            if "takes no writes" in str(error):
                asked.set()
            raise

    monkeypatch.setattr(Link, "look", look_there)
    address = tmp_path / "address"
    address.symlink_to(pair.primary.host)
    uri = make_conninfo(pair.uri, host=str(address))
    with (
        serving(uri, ingest={"patience": "60s", "wait": "60s"}) as port,
        Client(port) as earlier,
        Client(port) as client,
        pair.connect(pair.standby) as standby,
    ):
        send(earlier, SMALL)  # which reserves ids for the next one
        told = [earlier.reply()]
        standby.execute("SELECT pg_wal_replay_pause()")
        pair.db.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        pair.db.execute("SELECT pg_reload_conf()")
        until(lambda: pair.db.execute("SHOW synchronous_standby_names").fetchone() == ("nobody",))
        send(client, SMALL)
        pair.waiting()
        behind = "SELECT pg_last_wal_receive_lsn() >= %s::pg_lsn"
        (end,) = pair.db.execute("SELECT pg_current_wal_lsn()").fetchone() or ("",)
        until(lambda: standby.execute(behind, (end,)).fetchone() == (True,))
        address.unlink()
        address.symlink_to(pair.standby.host)
        pair.db.close()
        pair.primary.crash()
        assert asked.wait(PATIENCE)
        standby.execute("SELECT pg_wal_replay_resume()")
        pair.standby.control("-w", "promote")
        told.append(client.reply())
        pair.db = pair.connect(pair.standby)
        assert [reply[:3] for reply in told] == ["250", "250"]
        assert stored(pair.db) == {int(reply.split()[2]) for reply in told}


@pytest.mark.parametrize("wait", ["60s", "1s"], ids=["under way", "given up"])
def test_mail_is_refused_at_once_while_ids_wait_for_the_standby(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, wait: str
) -> None:
    monkeypatch.setattr("pgmta.intake.ids._MIN_IDS", 1)
    limits = {"slow_commit": "300ms", "late_commit": "300ms" if wait == "60s" else "60s"}
    with serving(pair.uri, ingest={"wait": wait}, limits=limits) as port, ExitStack() as stack:

        def offered() -> str:
            with Client(port).hello() as client:
                return client.say("MAIL FROM:<a@b>")[:3]

        clients = [stack.enter_context(Client(port)) for _ in range(2)]
        send(clients[0], SMALL)
        assert clients[0].reply()[:3] == "250"
        with pair.frozen():
            send(clients[1], SMALL)
            if wait == "1s":
                assert clients[1].reply()[:3] == "451"
            until(lambda: offered() == "451")
            assert [offered() for _ in range(5)] == ["451"] * 5
        if wait == "60s":
            assert clients[1].reply()[:3] == "250"
        until(lambda: offered() == "250")


class Traffic:
    """Clients of smtpd, and programs by Client and by SQL, which note what they were told."""

    def __init__(self, pair: Pair, port: int) -> None:
        self._pair, self._port = pair, port
        self._over = threading.Event()
        self.told: list[int] = []
        """Message ids that were promised, each a fact for its program."""
        ways = (self._smtp, self._smtp, self._client, self._sql)
        self._threads = [threading.Thread(target=way) for way in ways]
        for thread in self._threads:
            thread.start()

    def go_on(self) -> None:
        """Return when 20 more were promised."""
        wanted = len(self.told) + 20
        until(lambda: len(self.told) >= wanted)

    def end(self) -> None:
        """Return when each has its last answer."""
        self._over.set()
        for thread in self._threads:
            thread.join(PATIENCE)

    def _smtp(self) -> None:
        while not self._over.is_set():
            with Client(self._port) as client, suppress(AssertionError):  # 451 at MAIL
                send(client, SMALL)
                reply = client.reply()
                if reply[:3] == "250":
                    self.told.append(int(reply.split()[2]))

    def _client(self) -> None:
        with pgmta.SyncClient(self._pair.either) as client:
            while not self._over.is_set():
                with suppress(pgmta.StoreUnavailable):
                    self.told.append(client.send(letter()))

    def _sql(self) -> None:
        text = (SUBMIT % uuid4()).encode()
        while not self._over.is_set():
            with suppress(psycopg.Error), psycopg.connect(self._pair.either) as db:
                warnings: list[Any] = []
                db.add_notice_handler(warnings.append)
                row = db.execute(text).fetchone()
                db.commit()
                if row and not warnings:
                    self.told.append(row[0])
                    text = (SUBMIT % uuid4()).encode()  # else it is repeated


def test_a_failover_loses_nothing_that_was_promised(pair: Pair) -> None:
    """The standby stops and goes on, and the waits for it are ended in every way."""
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    with serving(pair.either, ingest={"wait": "1s"}) as port:
        traffic = Traffic(pair, port)
        try:
            for _ in range(12):
                traffic.go_on()
                pair.freeze()
                for _ in range(chance.randrange(1, 4)):
                    chance.choice((pair.cancel, pair.terminate))()
                pair.thaw()
            pair.freeze()
            for _ in range(8):
                chance.choice((pair.cancel, pair.terminate))()
            pair.fail_over()
        finally:
            traffic.end()
        assert len(traffic.told) > 200
        assert set(traffic.told) <= stored(pair.db)


@pytest.fixture(scope="module")
def lasting(server: str) -> Iterator[Pair]:
    """Servers for tests that lose none of them."""
    with replicated(server) as made:
        yield made


@pytest.fixture
async def link(lasting: Pair) -> AsyncIterator[Link]:
    made = Link(lasting.uri, "test", proof_s=PATIENCE)
    yield made
    await made.close()


@asynccontextmanager
async def waiting_for(pair: Pair, *doubts: Doubt) -> AsyncIterator[Callable[[Any], Awaitable[Any]]]:
    """A function that begins something, has its commits doubted, and sees that it goes on waiting.

    The standby is back when the block ends, and each has to end then.
    """
    begun: list[asyncio.Future[Any]] = []

    async def begin(what: Any) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.ensure_future(what)
        begun.append(future)
        for doubt in doubts:
            await asyncio.to_thread(doubt)
        await asyncio.to_thread(pair.waiting)
        await let_others_run(10)
        assert not future.done()
        return future

    pair.freeze()
    try:
        yield begin
    finally:
        pair.thaw()
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*begun)


async def test_a_cancelled_wait_is_no_success(lasting: Pair, link: Link) -> None:
    """Not in the first commit, and not in that of the proof."""
    settings = (
        "SELECT current_setting('synchronous_commit'), current_setting('client_min_messages')"
    )
    before = await link.run(settings)
    async with waiting_for(lasting, lasting.cancel, lasting.cancel) as begin:
        call = await begin(link.run("SELECT nextval('message_ids'), pg_current_xact_id()"))
        other = Link(lasting.uri, "other", proof_s=0.1)
        emit = "SELECT pg_logical_emit_message(true, '', '')"
        short = asyncio.ensure_future(other.run(emit))
        await eventually(lambda: len(lasting.looking()) == 2)
        lasting.cancel()
        with pytest.raises(Undecided) as caught:
            await short
        assert not isinstance(caught.value, AnswerLost)
        assert await other.run("SELECT 1") == [(1,)]  # neither broken nor in doubt
        await other.close()
    assert len(await call) == 1
    assert await link.run(settings) == before


async def test_a_proof_is_one_whatever_the_session_has_set(lasting: Pair, link: Link) -> None:
    options = "-c synchronous_commit=off -c client_min_messages=error"
    careless = Link(make_conninfo(lasting.uri, options=options), "careless", proof_s=PATIENCE)
    async with waiting_for(lasting, lasting.cancel) as begin:
        await begin(careless.prove())
    await careless.close()


async def test_a_commit_without_doubt_costs_nothing(
    lasting: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A warning of an operator's trigger costs a proof, and mail goes on."""
    proofs: list[float] = []
    real = LinkConnection.prove

    async def prove(self: LinkConnection, seconds: float) -> None:
        proofs.append(seconds)
        await real(self, seconds)

    monkeypatch.setattr(LinkConnection, "prove", prove)

    async def accept() -> str:
        def dialogue() -> str:
            with serving(lasting.uri) as port, Client(port) as client:
                send(client, SMALL)
                return client.reply()[:3]

        async with pgmta.Client(lasting.uri) as client:
            await client.send(letter())
        return await asyncio.to_thread(dialogue)

    assert await accept() == "250"
    assert not proofs
    lasting.db.execute("""
        CREATE FUNCTION pgmta.warns() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN RAISE WARNING 'look'; RETURN NULL; END $$;
        CREATE TRIGGER warns AFTER INSERT ON pgmta.messages EXECUTE FUNCTION pgmta.warns()
    """)
    try:
        assert await accept() == "250"
        assert len(proofs) == 2
    finally:
        lasting.db.execute("DROP FUNCTION pgmta.warns CASCADE")


@pytest.mark.parametrize("statement", [SUBMIT, MAILS], ids=["key", "call"])
async def test_a_repetition_in_sql_waits_for_the_first(lasting: Pair, statement: str) -> None:
    """With psycopg, and with a pool of asyncpg whose connection broke."""
    text = statement % uuid4()
    given = psycopg.conninfo.conninfo_to_dict(lasting.uri)
    async with asyncpg.create_pool(
        host=given["host"], user=given["user"], database="pgmta", min_size=1, max_size=1
    ) as pool:
        lasting.freeze()
        first = asyncio.ensure_future(pool.fetchval(text))
        await asyncio.to_thread(lasting.terminate)
        with pytest.raises(asyncpg.PostgresError):
            await first

        async def by_psycopg() -> Any:
            async with await psycopg.AsyncConnection.connect(lasting.uri) as db:
                return await (await db.execute(text.encode())).fetchone()

        async with waiting_for(lasting) as begin:
            pooled = await begin(pool.fetchval(text))
            again = await begin(by_psycopg())
            await eventually(lambda: len(lasting.looking()) == 2)
        assert (await pooled,) == await again
        assert await pooled in stored(lasting.db)


async def test_a_repeated_cancel_waits_for_the_first(lasting: Pair) -> None:
    async with pgmta.Client(lasting.uri) as client:
        number = await client.send(letter())
        async with waiting_for(lasting, lasting.terminate) as begin:
            call = await begin(client.cancel(number))
        # the repetition stops nothing, unless the first one was ended before it had stopped it
        assert await call in (0, 1)


@pytest.fixture(scope="module")
def shop(lasting: Pair) -> str:
    """URI of an application that asks for mail about accounts."""
    install(lasting.uri)
    lasting.db.execute("""
        CREATE ROLE shop LOGIN IN ROLE pgmta_submit;
        INSERT INTO lifecycle.accounts (email, login, status) VALUES
            ('ann@b.example', 'ann', 'active'), ('bob@b.example', 'bob', 'provisioned'),
            ('eve@b.example', 'eve', 'suspended'), ('dan@b.example', 'dan', 'active');
        INSERT INTO lifecycle.tokens (action, account)
            VALUES ('activation', 3), ('password_recovery', 4);
        SELECT pgmta.suppress('ann@b.example');
    """)
    return make_conninfo(lasting.uri, user="shop")


@pytest.mark.parametrize(
    ("first", "again"),
    [
        ("lifecycle.recover('ann@b.example')", None),
        ("lifecycle.activate_again('2')", None),
        ("pgmta.suppression_release('ann@b.example')", None),
        (
            "pgmta.forget('bob@b.example', 'suppressions', false)",
            "pgmta.forget('bob@b.example', 'queue', false)",
        ),
        (
            "pgmta.forget('eve@b.example', 'suppressions', false)",
            "pgmta.suppress('eve@b.example')",
        ),
    ],
)
async def test_nothing_to_do_is_an_answer_that_waits_too(
    lasting: Pair, shop: str, first: str, again: str | None
) -> None:
    uri = shop if first.startswith("lifecycle") else lasting.uri

    async def call(function: str) -> None:
        async with await psycopg.AsyncConnection.connect(uri) as db:
            await db.execute(f"SELECT {function}".encode())

    with lasting.frozen():
        lost = asyncio.ensure_future(call(first))
        await asyncio.to_thread(lasting.terminate)
        with pytest.raises(psycopg.OperationalError):
            await lost
        async with waiting_for(lasting) as begin:
            await begin(call(again or first))


@pytest.mark.parametrize("kind", ["terminated", "cancelled"])
async def test_a_client_answers_when_the_standby_has_the_mail(lasting: Pair, kind: str) -> None:
    doubt = lasting.terminate if kind == "terminated" else lasting.cancel
    before = stored(lasting.db)
    async with pgmta.Client(lasting.uri, connections=1) as client:
        async with waiting_for(lasting, doubt) as begin:
            call = await begin(client.send(letter()))
        assert stored(lasting.db) - before == {await call}
    async with pgmta.Client(lasting.uri, connections=1, patience=0.5) as client:
        await client.send(letter())
        with lasting.frozen():
            call = asyncio.ensure_future(client.send(letter()))
            await asyncio.to_thread(doubt)
            with pytest.raises(Undecided):
                await call


async def test_outcomes_and_begins_count_when_the_standby_has_them(
    lasting: Pair, link: Link
) -> None:
    numbers = [900_000_001 + n for n in range(2)]
    lasting.db.execute("DELETE FROM pgmta.queue")
    lasting.db.execute("SET search_path = pgmta")
    for number in numbers:
        row(lasting.db, message(lasting.db, number), once=True)
    items = (await Claims(link, "w", 600).claim(9, [])).items
    assert len(items) == 2
    async with waiting_for(lasting, lasting.cancel) as begin:
        call = await begin(RowLeases(link, "w", 600).mark_begun(items))
    assert await call == {item.id for item in items}
    settlements = Settlements(link, "w")
    now = datetime.now(UTC)
    outcomes = [
        Outcome(item, Event.DELIVERED, Reply(250, "2.0.0 Ok"), started=now, ended=now)
        for item in items
    ]
    lasting.freeze()
    first = asyncio.ensure_future(settlements.settle(outcomes))
    await asyncio.to_thread(lasting.terminate)
    with pytest.raises(AnswerLost) as caught:
        await first
    await settlements.end([caught.value.backend])
    async with waiting_for(lasting) as begin:
        again = await begin(settlements.settle(outcomes, again=True))
    assert await again == set()
    logged = "SELECT count(*) FROM attempts WHERE message_id = ANY (%s)"
    assert lasting.db.execute(logged, (numbers,)).fetchone() == (2,)


async def test_the_settler_writes_an_outcome_once_and_until_the_standby_has_it(
    lasting: Pair, link: Link
) -> None:
    """Its first commit came with the warning, and no proof of it came in time."""
    number = 900_000_009
    lasting.db.execute("SET search_path = pgmta")
    row(lasting.db, message(lasting.db, number))
    leases = RowLeases(link, "settles", 600)
    items = [
        item
        for item in (await Claims(link, "settles", 600).claim(99, [])).items
        if item.message_id == number
    ]
    impatient = Link(lasting.uri, "impatient", proof_s=0.1)
    settler = Settler(Settlements(impatient, "settles"), Leases(leases), lambda delay: None)
    now = datetime.now(UTC)
    task = asyncio.create_task(settler.run())
    with lasting.frozen(), capture_logs() as logs:
        settler.put_outcome(
            Outcome(items[0], Event.FAIL, Reply(550, "5.1.1 No"), started=now, ended=now)
        )
        await asyncio.to_thread(lasting.cancel)
        await eventually(lambda: [each["event"] for each in logs] == ["can't settle"])
        flush = asyncio.ensure_future(settler.flush())
        await asyncio.to_thread(lasting.waiting)
        assert not flush.done()
    await flush
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await impatient.close()
    logged = "SELECT event FROM attempts WHERE message_id = %s"
    assert lasting.db.execute(logged, (number,)).fetchall() == [("failed",)]


def test_queuectl_names_no_id_before_the_standby_has_it(lasting: Pair, tmp_path: Path) -> None:
    config = tmp_path / "queued.yaml"
    config.write_text(yaml.safe_dump({"environment": {"database": {"uri": lasting.uri}}}))
    words = "send --from shop@a.example --to r@b.example --subject x --text x -c"

    def run() -> None:
        results.append(CliRunner().invoke(queuectl, [*words.split(), str(config)]))

    results: list[Any] = []
    for doubts in (1, 2):
        lasting.freeze()
        thread = threading.Thread(target=run)
        thread.start()
        for _ in range(doubts):
            lasting.cancel()
        if doubts == 1:
            lasting.waiting()
            assert not results
        lasting.thaw()
        thread.join(PATIENCE)
    proven, unproven = results
    assert proven.exit_code == 0
    assert int(proven.output) in stored(lasting.db)
    assert unproven.exit_code != 0
    assert "no synchronous standby has confirmed" in unproven.output


def prove_over(kind: str, uri: str) -> None:
    """Prove over a connection of this kind."""
    host = psycopg.conninfo.conninfo_to_dict(uri)["host"]
    with ExitStack() as stack:
        if kind == "psycopg":
            connection: Any = stack.enter_context(psycopg.connect(uri))
        elif kind == "Django":
            stack.enter_context(django_on(uri))
            stack.callback(connections.close_all)  # after an error too
            connection = connections["default"]
        else:
            engine = sqlalchemy.create_engine(f"postgresql+psycopg://postgres@/pgmta?host={host}")
            stack.callback(engine.dispose)
            made = Session(engine) if kind == "Session" else engine.connect()
            connection = stack.enter_context(made)
        pgmta.prove(connection)


async def prove_later(kind: str, uri: str) -> None:
    """The same over an asynchronous one."""
    if kind == "AsyncConnection":
        async with await psycopg.AsyncConnection.connect(uri) as connection:
            await pgmta.prove(connection)
            return
    host = psycopg.conninfo.conninfo_to_dict(uri)["host"]
    engine = create_async_engine(f"postgresql+asyncpg://postgres@/pgmta?host={host}")
    try:
        async with AsyncSession(engine) as session:
            await pgmta.prove(session)
    finally:
        await engine.dispose()


@pytest.mark.parametrize(
    "kind", ["psycopg", "Connection", "Session", "Django", "AsyncConnection", "asyncpg"]
)
async def test_a_program_proves_what_it_has_committed(lasting: Pair, kind: str) -> None:
    def proof() -> Awaitable[None]:
        if kind in ("AsyncConnection", "asyncpg"):
            return prove_later(kind, lasting.uri)
        return asyncio.to_thread(prove_over, kind, lasting.uri)

    await proof()
    async with waiting_for(lasting) as begin:
        await begin(proof())
    with lasting.frozen():
        call = asyncio.ensure_future(proof())
        await asyncio.to_thread(lasting.cancel)
        with pytest.raises(pgmta.Undecided):
            await call


def test_a_proof_in_a_transaction_is_refused(lasting: Pair) -> None:
    with psycopg.connect(lasting.uri) as db:
        db.execute("SELECT 1")
        with pytest.raises(ValueError, match="in a transaction"):
            pgmta.prove(db)
    with pytest.raises(TypeError, match=r"^connection: give a psycopg"):
        pgmta.prove(object())
