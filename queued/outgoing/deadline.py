"""Bad deadlines of rows, for the log."""

from __future__ import annotations

from datetime import datetime

from pgmta.logs import get
from pgmta.mail.metadata import deadline_of
from pgmta.model import Item

log = get("worker")


class Deadlines:
    """Reads the deadlines of rows, and names bad ones in the log, once for each row."""

    def __init__(self) -> None:
        self.bad: list[tuple[Item, str]] = []
        """Rows with a bad deadline whose first attempt begins, and the reasons."""

    def read(self, item: Item) -> datetime | None:
        """Return the deadline of a row with metadata; None if it has none, or a bad one."""
        deadline, problem = deadline_of(item.metadata or "{}")
        if problem and item.attempts <= 1:
            self.bad.append((item, problem))
        return deadline

    def warn(self) -> None:
        """Name the bad deadlines in one line of the log."""
        (item, problem), *others = self.bad
        log.warning("a deadline is ignored", row=item.id, message=item.message_id, reason=problem,
                    others=len(others))  # fmt: skip
        self.bad = []
