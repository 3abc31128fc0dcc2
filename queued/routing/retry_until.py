"""Until when a deferred row is tried, as in the field Will-Retry-Until (RFC 3464, 2.3.9; pure)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from pgmta.mail.metadata import DEADLINE_KEY, deadline_of
from pgmta.model import Item
from pgmta.report_row import ReportRow
from queued.config import QueuedConfig, Retry
from queued.routing.routes import Routes


class RetryUntil:
    """Computes the time from the policy of each row's route, and from its deadline."""

    def __init__(self) -> None:
        self._config: QueuedConfig | None = None

    def find_end(self, row: ReportRow, config: QueuedConfig) -> datetime | None:
        """Return the time after which a row is not tried; None if there is none.

        The number of attempts may end it before.
        """
        if config is not self._config:
            self._routes = Routes(config.routes, config.routing)
            self._config = config
        own = self._routes.retry(row)
        return end_of(own or config.retry, row.ts, row.answer_class, row.metadata)


def end_of(
    retry: Retry, since: datetime, answer_class: str, metadata: str | None
) -> datetime | None:
    """Return when a policy and a deadline end a row of this age and class of the last answer."""
    expire = retry.of_class(answer_class).expire or retry.expire
    try:
        end: datetime | None = since + timedelta(seconds=expire)
    except OverflowError:  # the time is beyond the calendar
        end = None
    if metadata and DEADLINE_KEY in metadata:
        deadline, _ = deadline_of(metadata)
        if deadline:
            return min(deadline, end) if end else deadline
    return end


_MAX_WAIT_S = 366 * 86400.0  # until a row that nothing ends is looked at again


def look_again(item: Item, retry: Retry, delays: Sequence[float], now: datetime) -> float | None:
    """Return the seconds for which a row that is suspended needs nothing.

    Its age, its deadline or a delay notice (`delays` are their ages in seconds) ends them. None
    says that its age is over.
    """
    age = (now - item.ts).total_seconds()
    if age >= retry.expire:
        return None
    wait = min(retry.expire - age, _MAX_WAIT_S)
    if item.metadata and DEADLINE_KEY in item.metadata:
        deadline, _ = deadline_of(item.metadata)
        if deadline:
            wait = min(wait, (deadline - now).total_seconds())
    if item.on_failed == "bounce" and item.sender:
        wait = min([wait, *(delay - age for delay in delays if delay > age)])
    return max(wait, 0.0)
