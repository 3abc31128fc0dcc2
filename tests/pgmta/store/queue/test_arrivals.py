"""Arrivals of rows, by the sequence and the open transactions."""

from __future__ import annotations

from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from pgmta.store.queue import arrivals as arrivals_module
from pgmta.store.queue.arrivals import Arrivals

STEPS = st.lists(st.sampled_from(["begin", "insert", "commit", "rollback", "wake", "look"]))


class Database:
    """Transactions, a sequence and rows; `claim` takes the committed rows."""

    def __init__(self) -> None:
        self.transaction = 700
        self.row = 1
        self.open: dict[int, set[int]] = {}
        self.committed: set[int] = set()

    def do(self, step: str, which: int) -> None:
        if step == "begin":
            self.open[self.transaction] = set()
            self.transaction += 1
        elif self.open and step in ("insert", "commit", "rollback"):
            number = sorted(self.open)[which % len(self.open)]
            if step == "insert":
                self.open[number].add(self.row)
                self.row += 1
            else:
                rows = self.open.pop(number)
                self.committed |= rows if step == "commit" else set()

    @property
    def end(self) -> int:
        """The number after that of the transaction with the highest one that has ended."""
        return max(set(range(700, self.transaction)) - self.open.keys(), default=699) + 1

    @property
    def snapshot(self) -> str:
        shown = sorted(number for number in self.open if number < self.end)
        return f"{min(shown, default=self.end)}:{self.end}:{','.join(map(str, shown))}"

    def claim(self) -> set[int]:
        rows, self.committed = self.committed, set()
        return rows


@given(st.lists(st.tuples(STEPS, STEPS), max_size=30), st.randoms(use_true_random=False))
def test_no_look_leaves_a_committed_row(looks: list[tuple[list[str], list[str]]], dice) -> None:  # type: ignore[no-untyped-def]
    """Whatever happens between the looks, and in a look between the snapshot and the sequence.

    A row that is committed before a look is claimed after it.
    """
    with patch.object(arrivals_module, "_LOOKS_PER_MOVE", 1000):
        follow(looks, dice)


def follow(looks: list[tuple[list[str], list[str]]], dice) -> None:  # type: ignore[no-untyped-def]
    database, arrivals = Database(), Arrivals()
    end = ["commit"] * 100
    for between, within in [*looks, (end, []), ([], [])]:
        for step in between:
            database.do(step, dice.randrange(100))
            if step == "wake":  # a NOTIFY
                arrivals.claimed(database.claim())
        due, snapshot = set(database.committed), database.snapshot
        for step in within:
            database.do(step, dice.randrange(100))
        if arrivals.see(database.row, snapshot):
            arrivals.claimed(database.claim())
        assert not due & database.committed
    assert not database.committed


def see(arrivals: Arrivals, *looks: tuple[int, str]) -> list[tuple[bool, bool]]:
    return [(arrivals.see(*look), arrivals.waiting) for look in looks]


def test_transactions_without_rows_are_no_news() -> None:
    arrivals = Arrivals()
    quiet = (False, False)
    # 590 is open at the first look: it is waited for, and its end is news; 750 began later
    assert see(arrivals, (4, "590:600:590")) == [(True, True)]
    ends = [(4, f"590:{number}:590") for number in range(601, 620)]
    assert see(arrivals, *ends) == [(True, True)] * 16 + [(False, True)] * 3
    assert see(arrivals, (4, "700:700:"), (4, "700:800:750")) == [(True, False), quiet]
    assert see(arrivals, (5, "700:700:")) == [(True, False)]
    # one that had its number at that look may end later, but is not waited for without end
    ends = [(5, f"{number}:{number}:") for number in range(701, 720)]
    assert see(arrivals, *ends) == [(True, False)] * 16 + [quiet] * 3
    assert see(arrivals, (5, "723:725:723,724"), (5, "800:801:")) == [quiet] * 2
    # 801 and 803 are open and have rows 5 and 6: 801 shows when 802 has ended
    assert see(arrivals, (7, "801:801:"), (7, "801:803:801")) == [(True, False), (True, True)]
    arrivals.claimed([5])
    assert see(arrivals, (7, "801:803:801"), (7, "803:803:")) == [(False, True), (True, False)]
    assert see(arrivals, (7, "803:803:"), (7, "804:804:")) == [quiet, (True, False)]
    arrivals.claimed([6, 7])
    assert see(arrivals, (7, "805:805:"), (8, "821:900:850"), (8, "900:900:")) == [quiet] * 3
    assert see(arrivals, (9, "901:901:")) == [(True, False)]
    arrivals.claimed([8])
    assert see(arrivals, (9, "904:904:")) == [quiet], "our own transactions"
    arrivals.claimed([10**15 + n for n in range(20_000)])  # scheduled rows
    arrivals.claimed([9])
    assert see(arrivals, (10, "905:905:")) == [quiet]
