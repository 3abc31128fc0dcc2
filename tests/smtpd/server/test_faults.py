"""Faults of one part that must not become faults of another."""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
import threading
import warnings
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import psycopg
import pytest
import uvloop
from structlog.testing import capture_logs

import smtpd.commands.tally
import smtpd.session.closing
from pgmta.accounts.login import Login
from pgmta.config.ingest import Ingest
from pgmta.daemon_role import SMTPD
from pgmta.errors import StoreUnavailable
from pgmta.intake.chunk_writer import Part
from pgmta.intake.committer import Committer
from pgmta.intake.content import Content, State
from pgmta.model import CHUNK_OCTETS, PART_OCTETS, NewMessage
from pgmta.postgres.notify import Notifier
from pgmta.postgres.resources import Resources
from pgmta.store.queue.enqueue import Enqueue
from smtpd.commands.listener import SmtpListener
from smtpd.config import Listener, SmtpdConfig
from smtpd.server.server import Server
from smtpd.session.auth_command import Renewal
from smtpd.session.connection import Connection
from smtpd.session.opening import open_connection
from tests.support.rows import column
from tests.support.serving import Client, serving
from tests.support.users import add_user, log_in
from tests.support.waiting import PATIENCE, eventually, until

LARGE = (b"x" * 998 + b"\r\n") * 3000


def content(committer: Committer, number: int) -> Content:
    """That of a message with this id."""
    made = Content(committer.chunks.drop_chunks)
    made.id = number
    return made


def begin(client: Client) -> None:
    """Up to the content."""
    assert client.reply()[:3] == "220"
    for command in ("EHLO c", "MAIL FROM:<a@b>", "RCPT TO:<r@b>", "DATA"):
        assert client.say(command)[0] in "23"


@pytest.mark.parametrize(
    ("lines", "last"),
    [(3000, PART_OCTETS // CHUNK_OCTETS), (100, 0)],
    ids=["second part", "only part"],
)
def test_no_250_for_a_message_that_lost_a_chunk(
    database: str, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch, lines: int, last: int
) -> None:
    real = Enqueue.chunks

    async def chunks(self: Enqueue, parts: Iterable[tuple[int, int, bytes]]) -> None:
        parts = list(parts)
        if any(position >= last for _, position, _ in parts):
            raise RuntimeError("an unexpected error")
        await real(self, parts)

    monkeypatch.setattr(Enqueue, "chunks", chunks)
    with serving(database) as port, Client(port) as client:
        begin(client)
        with suppress(ConnectionError):  # hung up on, with content unread
            client.send(LARGE[: 1000 * lines] + b".\r\nQUIT\r\n")
            replies = client.rest()
            assert {reply[:3] for reply in replies} <= {"451", "221"}
    assert db.execute("SELECT id FROM messages").fetchall() == []


def test_content_whose_session_has_gone_is_removed(
    database: str, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection broke during the write: the fate of the message stays open."""
    real = Enqueue.chunks
    stored, gone = threading.Event(), threading.Event()
    lost = Connection.connection_lost

    def note(self: Connection, error: Exception | None) -> None:
        lost(self, error)
        gone.set()

    async def chunks(self: Enqueue, parts: Iterable[tuple[int, int, bytes]]) -> None:
        await real(self, parts)
        stored.set()
        await eventually(gone.is_set)

    monkeypatch.setattr(Enqueue, "chunks", chunks)
    monkeypatch.setattr(Connection, "connection_lost", note)
    with serving(database) as port:
        with Client(port) as client:
            begin(client)
            client.send(LARGE[:100_000] + b".\r\n")
            assert stored.wait(PATIENCE)
            assert db.execute("SELECT 1 FROM message_chunks").fetchall()
            reset = struct.pack("ii", 1, 0)
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        until(lambda: not db.execute("SELECT 1 FROM message_chunks").fetchall())
    assert db.execute("SELECT id FROM messages").fetchall() == []


def test_content_that_came_too_late_is_neither_kept_nor_written(
    database: str, db: psycopg.Connection
) -> None:
    resources = Resources(database, "smtpd")
    committer = Committer(SMTPD, resources, Ingest(wait=1.0, patience=0.0), Notifier(resources))
    ends: list[Exception | None] = []

    async def work() -> None:
        committer.start()
        for number in range(1, 20):
            body = b"x" * (PART_OCTETS - 1)
            message = NewMessage(number, "a@b", [("r@b", "b")], len(body), "", body)
            committer.commit(content(committer, number), message, ends.append)
        await eventually(lambda: len(ends) == 19)
        parts = [one for one in gc.get_objects() if issubclass(type(one), Part) and one.octets]
        assert len(parts) <= 4  # what two connections have begun to write
        blocker.rollback()
        await eventually(lambda: not db.execute("SELECT 1 FROM message_chunks").fetchall())
        await committer.stop()
        await resources.close()

    with psycopg.connect(database) as blocker:
        blocker.execute("LOCK TABLE message_chunks IN EXCLUSIVE MODE")
        asyncio.run(work())
    assert all(ends)
    assert db.execute("SELECT id FROM messages").fetchall() == []
    assert db.execute("SELECT 1 FROM message_chunks").fetchall() == []


def test_content_is_freed_without_a_collection(database: str) -> None:
    def alive(kind: type) -> int:
        # isinstance would ask objects such as the settings of Django for their class
        return sum(issubclass(type(one), kind) for one in gc.get_objects())

    gc.collect()
    before, others = alive(Connection), alive(NewMessage)  # of tests before this one
    gc.disable()
    try:
        with serving(database) as port:
            with Client(port) as client:
                assert client.reply()[:3] == "220"
                for command in ("EHLO c", *("MAIL FROM:<a@b>", "RCPT TO:<r@b>", "DATA", ".") * 5):
                    assert client.say(command)[0] in "23"
            until(lambda: alive(Connection) <= before + 1, describe="the session freed")
            until(lambda: alive(NewMessage) <= others, describe="the messages freed")
    finally:
        gc.enable()


async def test_a_message_that_cannot_be_encoded_stops_nobody(database: str) -> None:
    resources = Resources(database, "smtpd")
    committer = Committer(SMTPD, resources, Ingest(), Notifier(resources))
    committer.start()
    try:
        ends: list[asyncio.Future[Exception | None]] = []
        for number, sender in enumerate(("a@b", "\udcff@b", "c@b"), 1):
            end = asyncio.get_running_loop().create_future()
            ends.append(end)
            message = NewMessage(number, sender, [("r@b", "b")], 1, "", b"x")
            committer.commit(content(committer, number), message, end.set_result)
        async with asyncio.timeout(PATIENCE):
            first, refused, last = await asyncio.gather(*ends)
        assert first is None
        assert last is None
        assert isinstance(refused, UnicodeEncodeError)
    finally:
        await committer.stop()
        await resources.close()


async def test_a_message_whose_session_has_gone_is_not_put_back_after_an_outage(
    database: str, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client sends it again: stored as well, it would go out twice."""
    real, begun, gone = Enqueue.commit, asyncio.Event(), asyncio.Event()

    async def commit(self: Enqueue, *args: Any, **named: Any) -> bool:
        if not gone.is_set():
            begun.set()
            await gone.wait()
            raise StoreUnavailable("PostgreSQL is away")
        return await real(self, *args, **named)

    monkeypatch.setattr(Enqueue, "commit", commit)
    resources = Resources(database, "smtpd")
    committer = Committer(SMTPD, resources, Ingest(), Notifier(resources))
    committer.start()
    try:
        contents = [content(committer, number) for number in (1, 2, 3)]
        ends: list[asyncio.Future[Exception | None]] = []
        for each in contents:
            ends.append(asyncio.get_running_loop().create_future())
            message = NewMessage(each.id, "a@b", [("r@b", "b")], 1, "", b"x")
            committer.commit(each, message, ends[-1].set_result)
        async with asyncio.timeout(PATIENCE):
            await begun.wait()
            contents[1].discard()
            gone.set()
            assert {await ends[0], await ends[2]} == {None}
    finally:
        await committer.stop()
        await resources.close()
    assert contents[1].state is State.DISCARDED
    assert not ends[1].done()
    assert column(db, "SELECT id FROM messages ORDER BY id") == [1, 3]


async def test_only_what_has_no_answer_is_named_at_the_end(
    database: str, db: psycopg.Connection
) -> None:
    """Of a group that is written one by one, as a message of it is refused."""
    db.execute(
        "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NEW; END';"
        "CREATE TRIGGER wait BEFORE INSERT ON messages FOR EACH ROW WHEN (NEW.id = 3)"
        " EXECUTE FUNCTION wait(); SELECT pg_advisory_lock(1)"
    )
    resources = Resources(database, "smtpd")
    committer = Committer(SMTPD, resources, Ingest(connections=1), Notifier(resources))
    committer.start()
    ends: list[asyncio.Future[Exception | None]] = []
    for number, sender in enumerate(("a@b", "\udcff@b", "c@b", "d@b"), 1):
        ends.append(asyncio.get_running_loop().create_future())
        message = NewMessage(number, sender, [("r@b", "b")], 1, "", b"x")
        committer.commit(content(committer, number), message, ends[-1].set_result)
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*ends[:2])
    with capture_logs() as logs:
        await committer.stop()
        await resources.close()
    assert [log["id"] for log in logs if "may be in the queue" in log["event"]] == [3, 4]
    assert column(db, "SELECT id FROM messages ORDER BY id") == [1]


async def test_what_a_session_waits_for_may_end_before_it_begins(database: str) -> None:
    settings = SmtpdConfig.model_validate({"environment": {"hostname": "mx.example"}})
    loop = asyncio.get_running_loop()
    sessions = [open_connection(Server(settings, database), SmtpListener(settings, Listener()))]
    server = await loop.create_server(lambda: sessions[0], "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    assert (await reader.readline())[:3] == b"220"
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        sessions[0].data_received(b"x" * (1 << 17))  # it waits a while
        assert sessions[0].transport
        sessions[0].transport.abort()
        sessions[0].connection_lost(None)
        writer.close()
        server.close()
        sessions.clear()
        await eventually(lambda: len(asyncio.all_tasks()) == 1)
        gc.collect()
    assert [str(warning.message) for warning in told] == []


@pytest.mark.parametrize("end", [b"QUIT\r\n", b""])
def test_a_client_that_does_not_read_is_dropped(
    database: str, monkeypatch: pytest.MonkeyPatch, end: bytes
) -> None:
    """Also where what waits for it is too little to stop its session."""
    gone: list[object] = []
    made, lost = Connection.connection_made, Connection.connection_lost

    def small(self: Connection, transport: Any) -> None:
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        made(self, transport)

    def note(self: Connection, error: Exception | None) -> None:
        gone.append(self)
        lost(self, error)

    monkeypatch.setattr(Connection, "connection_made", small)
    monkeypatch.setattr(Connection, "connection_lost", note)
    monkeypatch.setattr(smtpd.session.closing, "LINGER_S", 0.5)
    monkeypatch.setattr(smtpd.commands.tally, "MAX_USELESS_COMMANDS", 10_000)
    with serving(database, limits={"timeout": "1s"}) as port, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        client.connect(("127.0.0.1", port))
        client.sendall(b"HELP\r\n" * 600 + end)
        until(lambda: gone, describe="the connection dropped")


class Unread:
    """A transport whose client reads nothing."""

    def __init__(self, peer: tuple[str, int] | None) -> None:
        self.peer = peer
        self.written = 0
        self.closed = False
        self.protocol: Connection | None = None

    def get_extra_info(self, name: str) -> tuple[str, int] | None:
        if name == "socket":
            return None
        return self.peer

    def write(self, data: bytes) -> None:
        self.written += len(data)
        if self.written > 1 << 16 and self.protocol:
            self.protocol.pause_writing()

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return self.written

    def abort(self) -> None:
        self.closed = True

    close = write_eof = pause_reading = resume_reading = abort


def session(database: str, transport: Unread, data: bytes) -> None:
    async def run() -> None:
        config = SmtpdConfig()
        protocol = open_connection(Server(config, database), SmtpListener(config, Listener()))
        transport.protocol = protocol
        protocol.connection_made(transport)  # type: ignore[arg-type]
        protocol.data_received(data)
        protocol.connection_lost(None)

    uvloop.run(run())


def test_replies_to_one_burst_of_commands_are_bounded(database: str) -> None:
    transport = Unread(("127.0.0.1", 1))
    session(database, transport, b"HELP\r\n" * 40_000)
    assert transport.written < 1 << 17


def test_a_client_without_an_address_is_nobody(database: str) -> None:
    transport = Unread(None)  # as uvloop says of one that was reset before it was accepted
    session(database, transport, b"EHLO c\r\n")
    assert transport.closed
    assert not transport.written


def test_a_look_at_a_changed_user_that_fails_ends_its_session(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else would answer MAIL."""

    async def holds(self: Renewal, login: Login) -> bool:
        raise LookupError("a defect")

    monkeypatch.setattr(Renewal, "needed", lambda self, login: True)
    monkeypatch.setattr(Renewal, "_holds", holds)
    add_user(database, "ann", "right one")
    listen = [{"auth": "offered", "auth_without_tls": True}]
    with serving(database, listen=listen) as port, Client(port).hello() as client:
        assert log_in(client, "ann", "right one")[:3] == "235"
        client.send(b"MAIL FROM:<a@b.example>\r\n")
        assert client.rest() == ["451 4.3.0 Internal error, try again later"]
