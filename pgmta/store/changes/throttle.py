"""How long a change of many rows pauses between its batches, so that mail flows meanwhile."""

from __future__ import annotations

import math
import time

_WORK_SHARE = 0.2  # of the time, if the change is small enough for that
_MAX_WORK_SHARE = 0.5  # of the time, otherwise
_WISHED_S = 18.0  # a change of known size may take so long for the sake of the mail
_MAX_PAUSE_S = 1.0  # a batch that waited for locks owes no longer pause


class ChangePace:
    """Computes the pauses of one change of about `batches` batches."""

    def __init__(self, batches: float = math.inf) -> None:
        self._left = batches
        self._until = time.monotonic() + _WISHED_S

    def pause(self, worked: float) -> float:
        """Return the seconds to pause after a batch that took `worked` seconds.

        A change pauses four times as long as it works, if it still ends within 18 seconds.
        Otherwise it pauses as long as it works.
        """
        self._left -= 1
        most = worked * (1 / _WORK_SHARE - 1)
        least = worked * (1 / _MAX_WORK_SHARE - 1)
        if self._left <= 0:
            return min(_MAX_PAUSE_S, least)
        spare = (self._until - time.monotonic()) / self._left - worked
        return min(_MAX_PAUSE_S, max(least, min(most, spare)))
