"""CPU per message in each stage, without the network; bench/guard compares it."""

import asyncio
import datetime
import re
import time
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

from bench.corpus import Corpus, Plan
from pgmta.errors import Stage
from pgmta.intake.content import Content, DoneCallback
from pgmta.model import Item, NewMessage, Outcome, Reply
from pgmta.postgres.link import Link
from pgmta.store.claim import SESSION, Claims
from pgmta.store.enqueue import Enqueue
from pgmta.store.settle import Settlements
from queued.config import Timeouts
from queued.delivery.envelope import Envelope
from queued.delivery.hosts import Host
from queued.delivery.protocol import ClientProtocol
from queued.delivery.reply import Result, event_of
from queued.delivery.session import Session
from queued.worker.verdict import settled
from smtpd.config import Listener, SmtpdConfig
from smtpd.connection import Connection
from smtpd.listener import SmtpListener
from smtpd.server import Server

MESSAGES = 2000
GROUP = 20  # messages a statement
SIZE = 4096
NOW = datetime.datetime.now(datetime.UTC)
REPLY = Reply(250, "2.0.0 Ok")

Costs = dict[str, float]
"""CPU seconds per message by stage."""


def calibrate() -> float:
    """Return the CPU seconds of fixed work of the same kind: bytes, regular expressions, dicts."""
    text = b"Received: from a.example\r\n" * 40 + b"\r\n" + b"x" * 3000
    pattern = re.compile(rb"^received:", re.IGNORECASE | re.MULTILINE)
    started = time.process_time()
    seen: dict[int, bytes] = {}
    for number in range(3000):
        pattern.findall(text)
        seen[number % 500] = text[number % 100 :].replace(b"\r\n.", b"\r\n")
        text.find(b"\r\n.\r\n")
        f"{number}@example.org".rpartition("@")
    return time.process_time() - started


class _Wire:
    """A transport that leads nowhere; `answer` gets the written octets."""

    def __init__(self, answer: Callable[[bytes], None] = lambda data: None) -> None:
        self._answer = answer

    def write(self, data: bytes) -> None:
        self._answer(data)

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 25) if name == "peername" else None

    def close(self) -> None:
        pass

    abort = pause_reading = resume_reading = write_eof = close


class _Ids:
    """Message ids without a database."""

    def __init__(self) -> None:
        self.available = deque(range(1, MESSAGES + 1))


class _Committer:
    """Keeps the callback of a message, as the real one does until the commit."""

    def __init__(self) -> None:
        self.ids = _Ids()
        self.chunks = None
        self.waiting: list[DoneCallback] = []

    def commit(self, content: Content, message: NewMessage, done: DoneCallback) -> None:
        content.message, content.done, content.collected = message, done, 0
        self.waiting.append(done)


async def dialogue() -> float:
    """Commands and content of smtpd, to the moment when the message waits for its commit."""
    corpus = Corpus(Plan("guard", MESSAGES, SIZE, 1, 1))
    config = SmtpdConfig.model_validate({"relay": {"networks": ["127.0.0.0/8"]}})
    server = Server(config, "postgresql://nowhere")
    committer = _Committer()
    server.committer = cast(Any, committer)
    connection = Connection(server, SmtpListener.make(config, Listener()))
    connection.connection_made(cast(Any, _Wire()))
    connection.data_received(b"EHLO guard.test\r\n")
    started = time.process_time()
    for n in range(MESSAGES):
        connection.data_received(
            b"MAIL FROM:<%s>\r\nRCPT TO:<%s>\r\nDATA\r\n"
            % (corpus.sender(n), corpus.recipient(n, 0))
        )
        connection.data_received(corpus.on_wire(n) + b".\r\n")
        committer.waiting.pop()(None)
    spent = time.process_time() - started
    connection.connection_lost(None)
    return spent / MESSAGES


class _Valid:
    """Leases that always hold."""

    def valid(self, items: list[Item]) -> bool:
        return True

    async def begin(self, items: list[Item]) -> bool:
        """Say yes."""
        return True


async def session() -> float:
    """Measure the SMTP client of queued: one transaction after another over one connection."""
    loop = asyncio.get_running_loop()
    connection = ClientProtocol(Timeouts())
    client = Session(connection, Host("guard.test", 25))

    def answer(data: bytes) -> None:
        if data.endswith(b"DATA\r\n"):
            replies = b"250 2.1.0 Ok\r\n250 2.1.5 Ok\r\n354 Go on\r\n"
        elif data.startswith(b"EHLO"):
            replies = b"250-guard.test\r\n250-PIPELINING\r\n250 SIZE 100000000\r\n"
        else:
            replies = b"250 2.0.0 Ok\r\n"
        loop.call_soon(connection.data_received, replies)

    connection.connection_made(cast(Any, _Wire(answer)))
    loop.call_soon(connection.data_received, b"220 guard.test\r\n")
    await client.open("guard.test")
    corpus = Corpus(Plan("guard", MESSAGES, SIZE, 1, 1))
    item = Item(1, 1, "s@from.bench.test", "r@d0.bench.test", "d0.bench.test", 1, NOW, 1)
    started = time.process_time()
    for n in range(MESSAGES):
        content = corpus.as_sent(n)
        await client.send(
            Envelope([item], item.sender, b"X: y\r\n", len(content), False, content, _Valid(), NOW)
        )
    return (time.process_time() - started) / MESSAGES


def _backend(pid: int) -> float:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


async def store(uri: str) -> Costs:
    """Enqueue, claim and settle, each with its backend's share, in groups."""
    links = {name: Link(uri, f"guard {name}", SESSION) for name in ("enqueue", "claim", "settle")}
    pids: dict[str, int] = {}
    for name, link in links.items():
        async with link.use() as connection:
            pids[name] = connection.info.backend_pid
    enqueue, claims = Enqueue(links["enqueue"]), Claims(links["claim"], "guard", 300.0)
    settlements = Settlements(links["settle"], "guard")
    corpus = Corpus(Plan("guard", MESSAGES, SIZE, 1, 1))
    costs: Costs = {}

    async def cost[T](name: str, work: Awaitable[T]) -> T:
        before = time.process_time() + _backend(pids[name])
        result = await work
        spent = time.process_time() + _backend(pids[name]) - before
        costs[name] = costs.get(name, 0.0) + spent / MESSAGES
        return result

    try:
        for first in range(0, MESSAGES, GROUP):
            block = await enqueue.block()
            group = [
                NewMessage(
                    block[k],
                    corpus.sender(first + k).decode(),
                    [(corpus.recipient(first + k, 0).decode(), "d0.bench.test")],
                    SIZE,
                    "Received: by guard\r\n",
                    corpus.as_sent(first + k),
                    on_failed="bounce",  # as smtpd gives it
                )
                for k in range(GROUP)
            ]
            await cost("enqueue", enqueue.commit(group))
            claim = await cost("claim", claims.claim(GROUP, [], 1 << 17, 1 << 25))
            await cost("settle", settlements.settle(_delivered(claim.items)))
    finally:
        for link in links.values():
            await link.close()
    return costs


def _delivered(items: list[Item]) -> list[Outcome]:
    result = Result(REPLY, "next.test[127.0.0.1]:25", Stage.END_OF_DATA)
    return [settled(item, event_of(result), result, NOW, NOW) for item in items]


async def measure(uri: str) -> Costs:
    """Measure all stages once."""
    return {"dialogue": await dialogue(), "session": await session(), **await store(uri)}
