"""How long a change of many rows pauses between its batches, so that mail flows meanwhile."""

from __future__ import annotations

import math
import time

_SHARE = 0.2  # of the time is work, if the change is small enough for that
_MOST_SHARE = 0.5  # of the time is work otherwise
_ABOUT = 18.0  # seconds that a change of known size may take for the sake of the mail
_LONGEST = 1.0  # seconds: a batch that waited for locks owes no longer pause


class ChangePace:
    """Computes the pauses of one change of about `batches` batches."""

    def __init__(self, batches: float = math.inf) -> None:
        self._left = batches
        self._until = time.monotonic() + _ABOUT

    def pause(self, worked: float) -> float:
        """Return the seconds to pause after a batch that took `worked` seconds.

        A change pauses four times as long as it works, if it still ends within 18 seconds.
        Otherwise it pauses as long as it works.
        """
        self._left -= 1
        most = worked * (1 / _SHARE - 1)
        least = worked * (1 / _MOST_SHARE - 1)
        if self._left <= 0:
            return min(_LONGEST, least)
        spare = (self._until - time.monotonic()) / self._left - worked
        return min(_LONGEST, max(least, min(most, spare)))
