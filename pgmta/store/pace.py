"""How long a change of many rows rests between its batches, so that mail flows meanwhile."""

from __future__ import annotations

import math
import time

_SHARE = 0.2  # of the time may be work, where the change is small enough for that
_LEAST_SHARE = 0.5  # of it otherwise
_ABOUT = 18.0  # seconds that a change of some size may take for the sake of the mail
_LONGEST = 1.0  # seconds: a batch that waited for locks owes no more


class Pace:
    """Rests for one change of about `batches` batches."""

    def __init__(self, batches: float = math.inf) -> None:
        self._left = batches
        self._until = time.monotonic() + _ABOUT

    def rest(self, worked: float) -> float:
        """Seconds to rest after a batch that took `worked` seconds."""
        self._left -= 1
        most = worked * (1 / _SHARE - 1)
        least = worked * (1 / _LEAST_SHARE - 1)
        if self._left <= 0:
            return min(_LONGEST, least)
        spare = (self._until - time.monotonic()) / self._left - worked
        return min(_LONGEST, max(least, min(most, spare)))
