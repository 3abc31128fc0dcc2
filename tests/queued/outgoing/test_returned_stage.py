"""Returned mail and the end of a worker."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime

from pgmta.model import Item, Message
from pgmta.store.queue.returned import LoggedAttempt, ReturnedLog, ReturnedRow
from queued.answers.answer_rules import AnswerRules
from queued.config import QueuedConfig
from queued.delivery.transport.result import NOT_BEGUN
from queued.outgoing.returned_stage import ReturnedStage
from queued.rewriting.verp import ReturnAddresses, VerpAddresses, VerpKeys
from tests.support.dispatcher import RecordingDispatcher, outgoing, stage_context

NOW = datetime.now(UTC)
TEMPLATE = "bounce+{id}-{hash}@news.example"
KEYS = VerpKeys((b"1" * 32,))


class SlowLog(ReturnedLog):
    """Answers when it may."""

    def __init__(self) -> None:
        self.asked, self.may = asyncio.Event(), asyncio.Event()

    async def record(self, rows: Sequence[ReturnedRow]) -> list[LoggedAttempt | None]:
        self.asked.set()
        await self.may.wait()
        return [LoggedAttempt("news@a.example", "joe@b.example")] * len(rows)


async def test_drained_worker_forwards_nothing_and_hands_back() -> None:
    """No destination would take the mail any more, and its row would stay leased."""
    log = SlowLog()
    dispatcher = RecordingDispatcher()
    concluded, forwarded = dispatcher.ended, dispatcher.sent
    mail = ReturnedStage(stage_context(dispatcher, returned=log))
    mail._addresses = ReturnAddresses([TEMPLATE], KEYS)
    mail._rules = AnswerRules(QueuedConfig().answering)
    mail._to = "sender"
    address = VerpAddresses(TEMPLATE, KEYS).address(7, 8, NOW)

    def take(number: int) -> None:
        row = Item(number, number, "", address, "news.example", 1, NOW, number)
        content = b"Subject: x\r\n\r\n"
        message = Message(number, 10, False, "", 0, content)
        assert mail.prepare(outgoing(row, message, content)) is None

    take(1)
    await log.asked.wait()
    log.may.set()
    await mail.wait()
    assert [i.recipient for i in forwarded] == ["news@a.example"]
    original = forwarded[0].original  # the log has the row, and its retry policy counts
    assert original
    assert original.recipient == address
    log.asked.clear()
    log.may.clear()
    take(2)
    await log.asked.wait()
    take(3)
    (third,) = mail.drain()
    log.may.set()
    await mail.wait()
    assert [row.id for row in third.items] == [3]
    assert (len(forwarded), concluded) == (1, [(2, NOT_BEGUN)])
