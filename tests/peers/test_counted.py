"""smtp-source and smtp-sink as the load of bench/peers: each message counts once."""

from __future__ import annotations

import smtplib
from pathlib import Path

import pytest

from bench.daemons import HOST
from bench.peer.cells import Cell
from bench.peer.counted import CountedPhase
from bench.peer.postfix import Postfix
from tests.support.packages import folder


@pytest.mark.needs("root", "postfix")
@pytest.mark.parametrize(("recipients", "more"), [(5, 0), (1, 1)])
def test_the_sink_counts_each_message_and_tells_of_one_too_many(
    place: Path, recipients: int, more: int
) -> None:
    options = Cell("e2e", 100, recipients=recipients).options(30.0, None, place)
    phase = CountedPhase("itself", options, place, Postfix(folder(), {}))
    with phase.stack:
        port = phase.start_sink(0)

        def disturb() -> None:
            for _ in range(more):
                with smtplib.SMTP(HOST, port) as client:
                    client.sendmail("a@from.bench.test", "b@to.bench.test", b"Subject: one\r\n\r\n")

        phase.transfer(port, lambda: None, disturb)
    assert phase.result.problems == (["101 messages, wanted 100"] if more else [])
    assert phase.result.figures.get("recipients/transaction") == (None if more else recipients)
