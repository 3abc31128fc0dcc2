"""Until when a deferred row is tried, as in the field Will-Retry-Until (RFC 3464, 2.3.9; pure)."""

from __future__ import annotations

from datetime import datetime, timedelta

from pgmta.mail.metadata import KEY, deadline_of
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
    except OverflowError:  # beyond the calendar
        end = None
    if metadata and KEY in metadata:
        deadline, _ = deadline_of(metadata)
        if deadline:
            return min(deadline, end) if end else deadline
    return end
