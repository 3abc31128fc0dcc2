"""Usage: what became of mail, counted by day."""

from __future__ import annotations

import time
from datetime import UTC, date, datetime, timedelta

from pydantic import BaseModel, Field

from pgmta.store.queries import feature_queries
from pgmta_features.http_api.api import Api
from pgmta_features.http_api.operation import Answer, Call, GivenDay, Operation, Received
from pgmta_features.http_api.pages import Page
from pgmta_features.http_api.problem import Problem

_SQL = feature_queries("http_api")
_MAX_DAYS = 366
_DAYS = timedelta(days=6)  # before today, without parameters
_DAY = timedelta(days=1)
_SEARCH_S = 2.0  # then no other day is begun
_DAY_TIMEOUT_S = 7.0  # for the log of a day, some millions of entries: an answer has 10 s


class UsageDays(Received):
    """Which days are counted."""

    since: GivenDay | None = Field(default=None, description="the first day; a week without it")
    until: GivenDay | None = Field(default=None, description="the last day; today without it")
    after: GivenDay | None = Field(default=None, description="`next` of the page before")


class UsageDay(BaseModel):
    """A day in UTC, and how many entries of the log it has for mail that the key sees."""

    day: date
    delivered: int
    deferred: int = Field(description="attempts that are made again")
    bounced: int = Field(description="refused for good")
    unknown: int
    expired: int = Field(description="given up: the time or the attempts were over")
    cancelled: int
    suppressed: int
    returned: int = Field(description="of the deliveries of this day: came back later")
    complained: int = Field(description="of the deliveries of this day: complained about")


class _Usage:
    def __init__(self, api: Api) -> None:
        self._database = api.database

    async def days(self, call: Call) -> Answer:
        """Count the days, the last one first; `next` goes on behind those of 2 s."""
        wanted: UsageDays = call.query
        last = wanted.until or datetime.now(UTC).date()
        first = wanted.since or last - _DAYS
        if first > last or last - first > _MAX_DAYS * _DAY:
            detail = f"Give up to {_MAX_DAYS} days, the first one first."
            raise Problem(400, "invalid", f"since: {detail}",
                          errors=[{"parameter": "since", "detail": detail}])  # fmt: skip
        day = min(last, wanted.after - _DAY) if wanted.after else last
        found: list[UsageDay] = []
        begun = time.monotonic()
        while day >= first and (not found or time.monotonic() < begun + _SEARCH_S):
            async with self._database.acting(
                call.caller, timeout_s=_DAY_TIMEOUT_S, places=self._database.searches
            ) as session:
                row = await session.row(_SQL["usage"], {"day": day})
            found.append(UsageDay(day=day, **(row or {})))
            day -= _DAY
        following = found[-1].day.isoformat() if found and day >= first else None
        return Answer(Page[UsageDay](data=found, next=following))


def operations(api: Api) -> list[Operation]:
    """Return the operations."""
    usage = _Usage(api)
    return [
        Operation(
            method="GET",
            path="/v1/usage",
            scope="usage",
            summary="Count what became of mail, by day",
            handler=usage.days,
            query=UsageDays,
            answers={200: Page[UsageDay]},
        )
    ]
