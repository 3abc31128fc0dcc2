"""Mail that waits for its template, and templates that were made by hand."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterable, Iterable
from datetime import UTC, datetime
from typing import cast

import pytest

from pgmta.compose.template import TemplateSource
from pgmta.model import Item, Message
from queued.outgoing import compose_stage
from queued.outgoing.compose_stage import ComposeStage
from queued.outgoing.outgoing import Outgoing
from tests.support.dispatcher import RecordingDispatcher, outgoing, stage_context

NOW = datetime.now(UTC)


class Templates:
    """Has a template for each id."""

    async def templates(self, ids: Iterable[int]) -> dict[int, TemplateSource]:
        if 13 in ids:
            raise RecursionError("headers of a row by hand")
        return {
            each: TemplateSource(
                sender="", from_="a@b.example", subject=f"{each}",
                body="{{a}}" * OFTEN if each == LARGE else "x",
            )
            for each in ids
        }  # fmt: skip

    async def composition(self, message_id: int) -> str:
        return composed(message_id, LONG).message.composition or ""


LARGE = 100
"""The template that has its word `a` OFTEN."""
OFTEN = 1000
LONG = "x" * 2000


def composed(template: int, a: str = "") -> Outgoing:
    item = Item(template, template, "", "r@b.example", "b.example", 1, NOW, 1)
    words = json.dumps({"a": a} if a else {})
    composition = f'[{template}, {{"to": [["", "r@b.example"]], "words": {words}}}]'
    message = Message(
        template, 9, False, "", 0, b"", f"<{template}.a@x.example>", composition=composition
    )
    return outgoing(item, message)


class Stage(ComposeStage):
    """Collects what it lets go on and what it ends."""

    def __init__(self) -> None:
        self.made: list[Outgoing] = []
        dispatcher = RecordingDispatcher()
        self.ended = dispatcher.ended
        super().__init__(stage_context(dispatcher, contents=Templates()))
        self.context.go_on = lambda _, made: self.made.append(made)


@pytest.mark.parametrize("most", [1, 64 << 20])
async def test_a_claim_may_need_more_templates_than_are_kept(
    monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(compose_stage, "_MAX_SOURCE_OCTETS", most)
    stage = Stage()
    for each in (1, 2, 3):
        assert stage.prepare(composed(each)) is None
    await stage.wait()
    assert stage.ended == []
    for n, made in enumerate(stage.made, 1):
        assert b"Subject: %d\r\n" % n in cast(bytes, made.content)
    assert len(stage.made) == 3
    assert stage.context.load == 0


async def test_a_template_that_can_not_be_read_stops_nobody() -> None:
    stage = Stage()
    assert stage.prepare(composed(13)) is None
    await stage.wait()
    assert [number for number, _ in stage.ended] == [13]
    assert stage.prepare(composed(1)) is None
    await asyncio.wait_for(stage.wait(), 5)
    assert len(stage.made) == 1
    assert stage.context.load == 0


async def test_large_texts_are_composed_when_they_are_sent() -> None:
    stage = Stage()
    assert stage.prepare(composed(LARGE, LONG)) is None
    await stage.wait()
    (made,) = stage.made
    assert made.content_octets == 0
    assert made.template
    content = b"".join([part async for part in cast(AsyncIterable[bytes], made.content)])
    assert content.replace(b"=\r\n", b"").count(b"x") >= OFTEN * len(LONG)


async def test_texts_that_are_too_large_are_not_composed() -> None:
    stage = Stage()
    assert stage.prepare(composed(LARGE, "x" * 5000)) is None
    await stage.wait()
    ((number, result),) = stage.ended
    assert (number, result.hold) == (LARGE, True)
    assert "the words of body are over 4 MB" in result.reply.text
