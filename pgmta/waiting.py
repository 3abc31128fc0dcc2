"""Lines of the log about a database that a daemon waits for."""

from __future__ import annotations

import time

from pgmta.errors import LoginRefused
from pgmta.logs import get

_REPEAT_INTERVAL_S = 60.0  # for the same reason in the log


class Waiting:
    """Logs why a daemon can't work: each new reason at once, and the same one per minute.

    A refused login is an error, because it does not pass by itself.
    """

    def __init__(self, part: str) -> None:
        self._log = get(part)
        self._reason = ""
        self._told = 0.0

    def tell(self, error: Exception) -> None:
        """Log the reason, unless it was logged in the last minute."""
        reason, now = " ".join(str(error).split()) or type(error).__name__, time.monotonic()
        if reason == self._reason and now < self._told + _REPEAT_INTERVAL_S:
            return
        self._reason, self._told = reason, now
        if isinstance(error, LoginRefused):
            self._log.error("PostgreSQL refuses the login", reason=reason)
        else:
            self._log.warning("waiting for the database", reason=reason)

    def over(self) -> None:
        """Note that the database is there, so that the next reason is a new one."""
        self._reason = ""
