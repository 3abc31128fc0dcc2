"""A command line that is too long to be kept."""

from __future__ import annotations

from smtpd.commands.tally import Consequence

LINE = 1 << 16
"""Octets of a line that are kept; a longer one is skipped up to its end."""
_SKIP = 1 << 18  # octets of a line that are skipped until smtpd hangs up


class LongLine:
    """Counts the octets of a line that smtpd throws away."""

    __slots__ = ("skipped",)

    def __init__(self) -> None:
        self.skipped = 0
        """Octets of the line so far; its rest is skipped too."""

    def skip(self, octets: int) -> Consequence:
        """Count octets of the line: there is a pause for each 64 KB, and an end without its end.

        A pause for each read would put off the end.
        """
        pauses = self.skipped // LINE
        self.skipped += octets
        if self.skipped > _SKIP:
            return Consequence.END
        return Consequence.DELAY if self.skipped // LINE > pauses else Consequence.GO_ON

    def end(self) -> None:
        """Note that the end of the line has come."""
        self.skipped = 0
