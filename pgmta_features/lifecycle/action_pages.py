"""What the pages of actions need, as the rows of lifecycle.actions have it."""

from __future__ import annotations

import math
import time
from typing import NamedTuple

from pgmta.config.urls import parse_return_url
from pgmta.logs import get
from pgmta.postgres.link_pool import LinkPool
from pgmta.store.queries import feature_queries

_MAX_AGE_S = 10.0
_MIN_AGE_S = 1.0  # for a name that was not there: nobody makes us ask more often

_SQL = feature_queries("lifecycle")

log = get("web")


class ActionPage(NamedTuple):
    """An action: whether its tokens have a code and give a proof, and its page.

    `returns_to` is where browsers go afterwards, '' for a page of ours, and `titles` are the
    headings by language.
    """

    code: bool
    proof: bool
    returns_to: str
    titles: dict[str, str]


class ActionPages:
    """Knows all actions. One question about all of them serves everybody for 10 s."""

    def __init__(self, pool: LinkPool) -> None:
        self._pool = pool
        self._pages: dict[str, ActionPage] = {}
        self._looked_at = -math.inf

    async def find(self, action: str) -> ActionPage | None:
        """Return an action; None if there is none. Raises StoreUnavailable, psycopg.Error."""
        age = time.monotonic() - self._looked_at
        if age >= (_MAX_AGE_S if action in self._pages else _MIN_AGE_S):
            rows = await self._pool.run(_SQL["pages"], {})
            self._pages = {name: _page(name, *row) for name, *row in rows}
            self._looked_at = time.monotonic()
        return self._pages.get(action)


def _page(
    name: str, code: bool, proof: bool, returns_to: str | None, titles: dict[str, str] | None
) -> ActionPage:
    url = ""
    try:
        url = parse_return_url(returns_to) if returns_to else ""
    except ValueError as error:
        log.error("returns_to of an action is not used", action=name, reason=str(error))
    return ActionPage(code, proof, url, titles or {})
