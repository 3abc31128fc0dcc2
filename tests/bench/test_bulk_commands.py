"""The operator of `bench/steer`: windows alternate, and the source is stopped in any case."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from bench.bulk_commands import BulkCommand, Operator, Queuectl
from bench.daemons import DaemonError
from bench.helper import Helper


class Paper(Queuectl):
    """Change nothing; deletions take three looks; `refuses` names a command that fails."""

    refuses = ""
    looks = 3

    def run(self, command: BulkCommand) -> int:
        if command.name == self.refuses:
            raise DaemonError(f"no {command.name}")
        return 7

    def deleting(self) -> bool:
        type(self).looks -= 1
        return self.looks > 0


class Stubborn(Paper):
    """One that fails."""

    refuses = "hold"


class Source:
    """Note the words it is sent."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def tell(self, word: str) -> None:
        self.words.append(word)


def work(queuectl: type[Paper]) -> tuple[Operator, Source]:
    """Let an operator run all commands."""
    operator = Operator(
        queuectl(Path("queuectl"), Path("x.yaml"), ""), warm=0, quiet=0.01, tail=0.05
    )
    source = Source()
    operator.begin(cast(Helper, source))
    operator.join(20)
    return operator, source


def test_windows_with_and_without_a_command_alternate_without_a_gap() -> None:
    operator, source = work(Paper)
    assert [window.command for window in operator.windows] == [
        None, "release", None, "retry", None, "hold", None, "delete", None
    ]  # fmt: skip
    for window, following in zip(operator.windows, operator.windows[1:], strict=False):
        assert window.start < window.end <= following.start < window.end + 1
    assert [command.rows for command in operator.measured] == [7] * 4
    release, _, _, delete = operator.measured
    assert release.afterwards >= 0.05, "the tail belongs to the release"
    assert delete.afterwards >= 0.5, "two looks in vain"
    assert Paper.looks == 0
    assert source.words == ["stop"]
    operator.check()
    assert operator.end()


def test_a_command_that_fails_ends_the_run_and_is_reported() -> None:
    operator, source = work(Stubborn)
    assert source.words == ["stop"]
    with pytest.raises(DaemonError, match="no hold"):
        operator.check()
    assert not operator.end()
