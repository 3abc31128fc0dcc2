"""Three producers are restarted in turn while they send: no call fails, and each mail goes once.

Options --rolling-restarts and --rolling-every (CONTRIBUTING.md).
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.daemons import ROOT
from tests.support.database import PrivateServer
from tests.support.steady_producer import Journal
from tests.support.system import System
from tests.support.waiting import PATIENCE, take_time, until

RATE = 500.0  # mails per second, of all producers
PRODUCERS = 3


@pytest.fixture
def system(tmp_path: Path, private_server: PrivateServer) -> Iterator[System]:
    """A relay on a server with durable commits."""
    system = System(tmp_path, private_server.uri)
    yield system
    system.clean()


def start(system: System, share: int, rate: float = RATE / PRODUCERS) -> subprocess.Popen[bytes]:
    words = [system.uri, str(share), str(rate), str(journal(system, share))]
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.steady_producer", *words],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
    )


def journal(system: System, share: int) -> Path:
    return system.folder / f"journal{share}"


def wait_sending(system: System, share: int, size: int) -> None:
    """Wait until the present producer sends: before, SIGTERM ends it as any program."""
    path = journal(system, share)
    until(lambda: path.exists() and path.stat().st_size > size)


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_no_call_fails_and_each_mail_goes_once(
    system: System, request: pytest.FixtureRequest
) -> None:
    restarts = int(request.config.getoption("--rolling-restarts"))
    every = float(request.config.getoption("--rolling-every"))
    hop = system.hop()
    system.queued(hop)
    running = [start(system, share) for share in range(PRODUCERS)]
    sizes = [0] * PRODUCERS  # of the journals, when the present producers began
    try:
        for number in range(restarts):
            take_time(every)
            place = number % PRODUCERS
            wait_sending(system, place, sizes[place])
            # every fourth one dies, so that each producer does at some time
            kind = signal.SIGKILL if number % 4 == 3 else signal.SIGTERM
            running[place].send_signal(kind)
            assert running[place].wait(PATIENCE) == (-kind if kind is signal.SIGKILL else 0)
            sizes[place] = journal(system, place).stat().st_size
            running[place] = start(system, place)
        take_time(every)
        for place, process in enumerate(running):
            wait_sending(system, place, sizes[place])
            process.terminate()
        assert [process.wait(PATIENCE) for process in running] == [0] * PRODUCERS
        running = [start(system, share, 0.0) for share in range(PRODUCERS)]
        assert [process.wait(PATIENCE) for process in running] == [0] * PRODUCERS
    finally:
        for process in running:
            process.kill()
            process.wait()
    system.wait_empty()

    journals = [Journal(journal(system, share)).read() for share in range(PRODUCERS)]
    begun = {number for each in journals for number in each.begun}
    stored = {number: ids for each in journals for number, ids in each.ids.items()}
    not_begun = sum(each.not_begun for each in journals)
    again = sum(len(each.path.read_text().split("stored ")) - 1 for each in journals) - len(stored)
    print(f"{restarts} restarts, {len(begun)} mails, {again} sent again, {not_begun} not begun")
    assert [line for each in journals for line in each.failed] == []
    assert stored.keys() == begun, "each has its id in the end"
    assert {len(ids) for ids in stored.values()} == {1}, "and the same one each time"
    assert hop.deliveries() == Counter(f"n{number}@hop.example" for number in begun), "each once"
    assert again > restarts
