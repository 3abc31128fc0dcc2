"""Reads the content of messages that did not come with their claim."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable
from typing import Any

from pgmta.aging_queue import PriorityLock
from pgmta.compose.template import TemplateSource
from pgmta.errors import Blocked, LoginRefused, StoreUnavailable
from pgmta.postgres.link import Link
from pgmta.store.queries import Statement, queries

_PATIENCE_S = 10.0  # with an outage, while the next hop waits for the content
_PAUSE_S = 0.25

_SQL = queries("contents")


class Contents:
    """Reads content over one connection, one part at a time.

    Parts of urgent messages go first, then those of the oldest message. So that message is finished
    early, and its memory is free. A request that has waited for a second goes before both. A
    delivery whose next hop is slow has no request waiting.

    A switchover costs no attempt: in an outage it asks again for 10 s. Then each method raises
    StoreUnavailable.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._turns = PriorityLock()

    async def body(self, message_id: int) -> bytes | None:
        """Return the whole content, None if the message is gone."""
        rows = await self._run(_SQL["body"], {"id": message_id})
        return bytes(rows[0][0]) if rows else None

    async def chunks(
        self, message_id: int, first: int, number: int, urgent: bool = False
    ) -> bytes | None:
        """Return `number` chunks of the content from `first` on, None if one of them is gone."""
        params = {"id": message_id, "first": first, "number": number}
        async with self._turns.hold(-1 if urgent else message_id):
            rows = await self._run(_SQL["chunks"], params)
        return b"".join(row[0] for row in rows) if len(rows) == number else None

    async def composition(self, message_id: int) -> str | None:
        """Return the template and the parameters of composed mail as JSON, None if it is gone."""
        rows = await self._run(_SQL["composition"], {"id": message_id})
        return str(rows[0][0]) if rows else None

    async def templates(self, ids: Iterable[int]) -> dict[int, TemplateSource]:
        """Return templates by id; an unknown id is absent."""
        rows = await self._run(_SQL["templates"], {"ids": list(ids)})
        return {
            number: TemplateSource(
                sender=sender, from_=from_field, reply_to=reply_to, subject=subject, body=body,
                html=html,
                headers=json.loads(headers, parse_int=str, parse_float=str),
            )
            for number, sender, from_field, reply_to, subject, body, html, headers in rows
        }  # fmt: skip

    async def _run(self, query: Statement, params: dict[str, Any]) -> list[tuple[Any, ...]]:
        until = time.monotonic() + _PATIENCE_S
        while True:
            try:
                return await self._link.run(query, params)
            except StoreUnavailable as error:
                if isinstance(error, Blocked | LoginRefused) or time.monotonic() >= until:
                    raise
            await asyncio.sleep(_PAUSE_S)
