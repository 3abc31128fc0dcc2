"""The page of notes in `queued web`, at /notes."""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web

from pgmta.http.answers import TEXT_TYPE
from pgmta.http.route import Route
from queued.web.site import Site, WebPart

from .config import NotesPage


class NotesRoutes:
    """Answers with all notes, below a title."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def routes(self) -> Sequence[Route]:
        """Return the routes."""
        return (Route("GET", "/notes", self._show, page=True),)

    async def problem(self) -> str:
        """Return why there is no page now; '' if there is."""
        await self._texts()
        return ""

    async def _show(self, _: web.Request) -> web.StreamResponse:
        title = self._site.config.section(NotesPage).title
        lines = [title, *await self._texts()]
        return self._site.answers.make("\n".join(lines).encode(), TEXT_TYPE)

    async def _texts(self) -> list[str]:
        rows = await self._site.tokens.run(b"SELECT text FROM pgmta.notes ORDER BY text", {})
        return [text for (text,) in rows]


PAGE = WebPart(begin=NotesRoutes, is_used=lambda config: bool(config.section(NotesPage).title))
