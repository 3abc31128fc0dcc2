"""Mail that waits for its template, and templates that were made by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
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
            each: TemplateSource(sender="", from_="a@b.example", subject=f"{each}", body="x")
            for each in ids
        }


def composed(template: int) -> Outgoing:
    item = Item(template, template, "", "r@b.example", "b.example", 1, NOW, 1)
    composition = f'[{template}, {{"to": [["", "r@b.example"]], "words": {{}}}}]'
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
