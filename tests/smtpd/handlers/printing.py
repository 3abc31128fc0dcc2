"""A hook that prints, as aiosmtpd's Debugging does."""

from __future__ import annotations

from typing import Any

from aiosmtpd.smtp import MISSING

AT_IMPORT = "printed at import"
LINE = "x" * 1000  # the kernel mixes no other output into a line of this length
LINES = 400  # more than a pipe and its reader hold

print(AT_IMPORT, flush=True)


class Printer:
    """Prints much for each message, and decides nothing."""

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> Any:
        for _ in range(LINES):
            print(LINE)
        return MISSING
