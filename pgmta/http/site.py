"""What a listener serves: its routes, its limits, and its answers to errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from aiohttp import web

from pgmta.http.answers import HttpAnswers, HttpError
from pgmta.http.route import HttpLimits, Route

type ErrorPage = Callable[[web.Request, HttpError], web.StreamResponse]
"""Returns an error for browsers."""


@dataclass(frozen=True, slots=True)
class HttpSite:
    """What a listener serves.

    Its paths are those of the routes, and the same behind `base`, which a proxy may take away.
    Without `error_page` all errors are problems. `check` looks at each request first, whatever its
    path, and may raise HttpError. `count` gets the label of the route (or `other`), the status and
    the seconds of each answer.
    """

    routes: Sequence[Route]
    limits: HttpLimits
    answers: HttpAnswers = field(default_factory=HttpAnswers)
    base: str = ""
    error_page: ErrorPage | None = None
    check: Callable[[web.Request], None] | None = None
    count: Callable[[str, int, float], None] | None = None
