"""Exit codes of sysexits.h, as callers of `sendmail` know them."""

from __future__ import annotations

OK = 0
USAGE = 64  # a wrong option
DATA_ERROR = 65  # an address or a header that can't be read
NO_USER = 67  # smtpd refuses a recipient
UNAVAILABLE = 69  # smtpd refuses the message
TEMPORARY = 75  # the message is neither sent nor kept: try again
CONFIG = 78  # the settings can't be read


class Exit(Exception):
    """The end of the command, with its code and a line for standard error."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
