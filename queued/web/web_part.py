"""What a feature adds to `queued web`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pgmta.http.route import Route
from pgmta.postgres.link import Link
from queued.web.web_config import WebConfig

if TYPE_CHECKING:
    from queued.web.site import Site


class Served(Protocol):
    """What a process serves for a feature, as long as the process lives."""

    def routes(self) -> Sequence[Route]:
        """Return the routes under the site's present configuration, at the start and after SIGHUP.

        The paths are those behind `public.url`.
        """

    async def problem(self) -> str:
        """Return why it can't be served now; '' if it can. Raises StoreUnavailable, psycopg.Error.

        It is asked while the configuration has something to serve.
        """


async def _fits(_: Link) -> None:
    """Ask nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebPart:
    """A feature's part of `queued web`.

    `begin` returns what a process serves. `is_used` says whether a configuration has anything for
    it, and `warnings` returns notes about that for the operator. `check` looks whether a login may
    do what is served, and raises psycopg.errors.InsufficientPrivilege. `folder` has the `templates`
    of the feature's pages, and their `texts` by language.
    """

    begin: Callable[[Site], Served]
    is_used: Callable[[WebConfig], bool]
    warnings: Callable[[WebConfig], list[str]] = lambda _: []
    check: Callable[[Link], Awaitable[None]] = _fits
    folder: Path | None = None
