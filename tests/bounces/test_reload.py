"""SIGHUP: a broken text leaves the old ones in force, and a mended one is used at once."""

from __future__ import annotations

import pytest

from tests.scenarios.conftest import system
from tests.support.nexthop import Do, Transaction
from tests.support.system import System

__all__ = ["system"]


def refuse(point: str, line: str, transaction: Transaction | None) -> Do | None:
    """Take DSNs only."""
    return Do(line="550 5.1.1 No such user") if point == "RCPT" and "<bob" in line else None


@pytest.mark.slow
def test_texts_are_read_again(system: System) -> None:
    hop = system.hop(refuse)
    text = system.folder / "texts" / "en.txt"
    text.parent.mkdir()
    text.write_text("[failed]\nSubject: One\n\n{recipients}\n")
    queued = system.queued(hop, bounces={"templates": "texts"})

    def subject(number: int) -> bytes:
        system.enqueue("bob@b.example", on_failed="bounce")
        content = hop.wait_kept(number)[-1].content
        assert content is not None
        return content.partition(b"Subject: ")[2].partition(b"\r\n")[0]

    assert subject(1) == b"One"
    text.write_text("[failed]\nSubject: Two\n\n{recipent}\n")
    queued.reload(queued.config)
    [kept] = queued.events("configuration kept as it was")
    reason = "{recipent}: unknown placeholder; did you mean 'recipient'?"
    assert kept["problems"] == [f"{text}:4: {reason}"]
    assert subject(2) == b"One"
    text.write_text("[failed]\nSubject: Three\n\n{recipients}\n")
    queued.reload(queued.config)
    assert subject(3) == b"Three"
    system.expected.add("configuration kept as it was")
