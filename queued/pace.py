"""How long a change of many rows rests between its batches, so that mail flows meanwhile."""

from __future__ import annotations

_SHARE = 0.5  # of the time may be work
_LONGEST = 1.0  # seconds: a batch that waited for locks owes no more


def rest(worked: float) -> float:
    """Seconds to rest after a batch that took `worked` seconds."""
    return min(_LONGEST, worked * (1 / _SHARE - 1))
