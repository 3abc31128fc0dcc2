"""Random faults while mail flows: nothing is lost, altered, or doubled without a reason.

Options: --faults-seconds, --faults-rounds, --faults-seed, --faults-only (CONTRIBUTING.md).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.faults import FAULTS, begin
from tests.support.ledger import Ledger, Sender
from tests.support.rig import BACK, FAULTY, GOOD, Rig, disk
from tests.support.waiting import take_time

MEMORY = 400 << 20  # octets that no process may exceed
SENDERS = 4
TWO = 0.2  # of the rounds have two faults at the same time


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """Of the faults and of the mail."""
    given = request.config.getoption("--faults-seed")
    return int(random.SystemRandom().randrange(10**6) if given is None else given)


@pytest.fixture
def rig(tmp_path: Path, seed: int) -> Iterator[Rig]:
    """A relay with traffic."""
    with disk() as (folder, small):
        rig = Rig(tmp_path, folder, small, Ledger(seed))
        try:
            yield rig
        finally:
            rig.clean()


@pytest.fixture
def more(request: pytest.FixtureRequest) -> Callable[[int], bool]:
    """Whether there is to be another round."""
    rounds = request.config.getoption("--faults-rounds")
    end = time.monotonic() + request.config.getoption("--faults-seconds")
    return lambda done: done < rounds if rounds else time.monotonic() < end


@pytest.fixture
def names(request: pytest.FixtureRequest, rig: Rig) -> list[str]:
    """Faults to choose from."""
    only = str(request.config.getoption("--faults-only"))
    chosen = only.split(",") if only else list(FAULTS)
    return [name for name in chosen if name != "disk full" or rig.small]


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_random_faults(rig: Rig, seed: int, names: list[str], more: Callable[[int], bool]) -> None:
    chance = random.Random(seed)
    senders = [
        Sender(rig.ledger, rig.smtpd.port, f"{seed} {number}", [GOOD, FAULTY])
        for number in range(SENDERS)
    ]
    story = [f"seed {seed}; faults left out: {sorted(set(FAULTS) - set(names))}"]
    slowest, done, began = 0.0, 0, time.monotonic()
    try:
        while more(done):
            chosen = chance.sample(names, 2 if len(names) > 1 and chance.random() < TWO else 1)
            lasts = chance.choice([0.0, 0.3, 1.0, 3.0])
            story.append(f"{time.monotonic() - began:.1f} s: {' + '.join(chosen)}, {lasts} s")
            with ExitStack() as stack:
                said = [stack.enter_context(begin(name, rig, chance)) for name in chosen]
                take_time(lasts)
            rig.supervise()
            took = rig.back()
            slowest = max(slowest, took)
            story[-1] += f" ({', '.join(said)}): back after {took:.1f} s"
            if took > BACK:
                rig.problems.append(f"not back within {BACK:.0f} s: {story[-1]}")
            rig.measure()
            done += 1
    finally:
        for sender in senders:
            sender.enough.set()
        for sender in senders:
            sender.join(120)
    rig.end()
    found = rig.judge()
    mails, arrived = len(rig.ledger.codes), rig.ledger.arrived
    taken = sum(code == 250 for code in rig.ledger.codes.values())
    doubled = sum(times > 1 for times in arrived.values())
    summary = (
        f"{done} rounds, {mails} mails, {taken} taken, {doubled} recipients with copies, back"
        f" within {slowest:.1f} s, {rig.largest >> 20} MB at most"
    )
    print("\n".join([*story, summary]))
    assert found == [], "\n".join([summary, *story, *found])
    assert rig.largest < MEMORY, summary
    assert taken > done
