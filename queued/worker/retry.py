"""The time of the next attempt (pure)."""

from __future__ import annotations

from queued.config import Retry

_KNOWN = 50_000  # rows


def delay(
    retry: Retry, attempts: int, chance: float, answer_class: str = "", *, first: bool = False
) -> float:
    """Return the seconds to wait after the given number of attempts.

    `chance` in [0, 1) shortens the wait by up to the jitter and never lengthens it: mail goes out
    within one interval after the next hop is back. `first` says that no earlier answer had this
    class. The wait after the first greylisted answer is not shortened: the host would refuse the
    mail again.
    """
    if first and (wait := retry.first_wait(answer_class)):
        return wait
    own = retry.of_class(answer_class)
    return (own if own.has_waits else retry).after(attempts) * (1 - retry.jitter * chance)


class FirstAnswers:
    """Knows which rows had an answer of a class with a first wait.

    It forgets after a restart, or after many other rows. A row then waits once more for the time
    of a first answer, which does no harm.
    """

    def __init__(self) -> None:
        self._seen: dict[int, str] = {}  # the oldest first

    def first(self, row_id: int, answer_class: str) -> bool:
        """Note the answer, and return whether the row had none of this class before."""
        before = self._seen.pop(row_id, None)
        if before is None and len(self._seen) >= _KNOWN:
            del self._seen[next(iter(self._seen))]
        self._seen[row_id] = answer_class
        return before != answer_class
