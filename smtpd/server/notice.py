"""A line in the log that clients can cause as often as they like."""

from __future__ import annotations

import time
from typing import Any

from pgmta.logs import get

_INTERVAL = 60.0  # seconds between two lines

log = get("smtpd")


class Notice:
    """Logs the first event, and once per minute how many there were."""

    def __init__(self, line: str) -> None:
        self._line = line
        self._count = 0  # since the last line
        self._logged = -_INTERVAL

    def note(self, **values: Any) -> None:
        """Count an event; its values are logged if it is the first or a minute has passed."""
        self._count += 1
        now = time.monotonic()
        if now >= self._logged + _INTERVAL:
            log.warning(self._line, count=self._count, **values)
            self._count, self._logged = 0, now
