"""Scheduled mail beside a worker whose clock is wrong, and beside a change of partitions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from queued.cli.queuectl import main
from tests.scenarios.test_scheduled import lateness, note_claims, submit
from tests.support.system import System
from tests.support.waiting import until

_ISO = 'YYYY-MM-DD"T"HH24:MI:SS"Z"'


@pytest.fixture
def watched(system: System) -> Iterator[System]:
    """An installation whose database notes each claim; at the end none of them was early."""
    yield from note_claims(system)


@pytest.mark.slow
@pytest.mark.needs("faketime")
@pytest.mark.parametrize("shift", ["+1h", "-1h"])
def test_the_clock_of_a_worker_moves_no_time(
    watched: System, shift: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hop = watched.hop()
    with monkeypatch.context() as patch:
        patch.setenv("LD_PRELOAD", "/usr/$LIB/faketime/libfaketimeMT.so.1")
        patch.setenv("FAKETIME", shift)
        patch.setenv("DONT_FAKE_MONOTONIC", "1")
        watched.queued(hop)
    submit(watched, "1 s", "near")
    submit(watched, "4 s", "far")
    submit(watched, "50 min", "later")
    until(lambda: len(lateness(watched)) == 2)
    until(lambda: len(hop.kept) == 2)
    assert watched.ask("SELECT status FROM queue") == [{"status": "SCHEDULED"}]
    (state,) = watched.ask("SELECT min(now() - started_at) BETWEEN '-1 s' AND '1 min' AS right"
                           " FROM attempts")  # fmt: skip
    assert state["right"], "times of attempts are of the database's clock"


@pytest.mark.slow
@pytest.mark.needs("faketime")
@pytest.mark.parametrize("shift", ["+1h", "-1h"])
def test_a_deadline_is_over_by_the_clock_of_the_database(
    system: System, shift: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a step of that clock, or of the worker's."""
    hop = system.hop()
    for name, minutes in (("soon", 30), ("over", -1)):
        system.enqueue(f"{name}@hop.example")
        deadline = f"to_char(now() AT TIME ZONE 'UTC' + interval '{minutes} min', '{_ISO}')"
        system.ask(f"UPDATE queue SET metadata = jsonb_build_object('_deadline', {deadline})"
                   f" WHERE recipient = '{name}@hop.example'")  # fmt: skip
    with monkeypatch.context() as patch:
        patch.setenv("LD_PRELOAD", "/usr/$LIB/faketime/libfaketimeMT.so.1")
        patch.setenv("FAKETIME", shift)
        patch.setenv("DONT_FAKE_MONOTONIC", "1")
        system.queued(hop)
    until(lambda: len(system.attempts()) == 2)
    assert [system.events(f"{name}@hop.example") for name in ("soon", "over")] == [
        ["delivered"],
        ["failed"],
    ]


@pytest.mark.slow
def test_partitions_may_change_while_mail_is_scheduled(watched: System) -> None:
    hop = watched.hop()
    config = str(watched.queued(hop).path)
    for name, ahead in (("near", "4 s"), ("far", "6 s"), ("later", "1 day")):
        submit(watched, ahead, name, more=""", metadata => '{"_partid": "x"}'""")
    for words in (["add", "queue_def_x", "--partid", "x"], ["drop", "queue_def_x"]):
        done = CliRunner().invoke(main, ["database", "partition", *words, "-c", config])
        assert done.exit_code == 0, done.output
        until(lambda: watched.ask("SELECT 1 FROM queue WHERE status = 'SCHEDULED'"))
    until(lambda: len(lateness(watched)) == 2)
    until(lambda: len(hop.kept) == 2)
    assert watched.ask("SELECT status FROM queue") == [{"status": "SCHEDULED"}]
