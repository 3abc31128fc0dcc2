"""Priorities of lines on stderr, for the journal of systemd.

The module imports the standard library alone, because `queuectl --help` waits for it.
"""

from __future__ import annotations

import os
from contextlib import suppress

_STREAM = "JOURNAL_STREAM"  # systemd.exec(5)
_STDERR_DESCRIPTOR = 2
_PRIORITIES = {"debug": 7, "warning": 4, "error": 3, "critical": 2}  # sd-daemon(3), syslog(3)
_KINDS = {"error": "error", "warning": "warning", "Traceback (most recent call last)": "error"}


def marked(level: str, text: str) -> str:
    """Return lines with the priority of `level` before each, if the journal reads stderr.

    The journal takes the priority off again. A line without one has that of the unit, info.
    """
    if level not in _PRIORITIES or not _read_by_journal():
        return text
    mark = f"<{_PRIORITIES[level]}>"
    return "\n".join(f"{mark}{line}" if line else line for line in text.split("\n"))


def marked_words(text: str) -> str:
    """Return the same for words of a command, which begin with their kind."""
    return marked(_KINDS.get(text.partition(":")[0], ""), text)


def _read_by_journal() -> bool:
    """Return whether stderr is the stream that systemd has named; a redirected one is not."""
    named = os.environ.get(_STREAM, "")
    with suppress(OSError):
        status = os.fstat(_STDERR_DESCRIPTOR)
        return named == f"{status.st_dev}:{status.st_ino}"
    return False
