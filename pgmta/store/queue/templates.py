"""Reads templates for mail that is composed. A version never changes, so callers may keep it."""

from __future__ import annotations

import json
from collections.abc import Iterable

from pgmta.compose.template import TemplateSource
from pgmta.postgres.link import Link
from pgmta.store.queries import queries

_SQL = queries("templates")


class TemplateReader:
    """Reads over one connection."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def read(self, ids: Iterable[int]) -> dict[int, TemplateSource]:
        """Return the templates by id; an unknown id is absent. Raises StoreUnavailable."""
        rows = await self._link.run(_SQL["read"], {"ids": list(ids)})
        return {
            number: TemplateSource(
                sender=sender, from_=from_field, reply_to=reply_to, subject=subject, body=body,
                html=html, headers=json.loads(headers),
            )
            for number, sender, from_field, reply_to, subject, body, html, headers in rows
        }  # fmt: skip
