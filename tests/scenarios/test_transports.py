"""Rows that go by HTTP are held, steered and explained as those by SMTP: one table for both."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from click.testing import CliRunner

from queued.cli.queuectl import main
from tests.features.providers.scripted_server import CUT, HELD, said
from tests.features.rates.mail_clock import shaping
from tests.support.daemons import Daemon
from tests.support.nexthop import Do, Transaction
from tests.support.provider import OK, Provider
from tests.support.system import System
from tests.support.waiting import until

pytestmark = pytest.mark.slow

ONCE, GONE = {"once": True}, {"on_failed": "remove"}
OVER = {"metadata": json.dumps({"_deadline": (datetime.now(UTC) - timedelta(1)).isoformat()})}
CASES: list[tuple[str, dict[str, Any], list[str], str | None]] = [
    ("taken", {}, ["delivered"], None),
    ("later", {}, ["deferred", "delivered"], None),
    ("refused", {}, ["failed"], "HOLD"),
    ("refused-removed", GONE, ["failed"], None),
    ("refused-bounced", {"on_failed": "bounce"}, ["failed"], None),
    ("refused-once", ONCE, ["failed"], "HOLD"),
    ("cut", {}, ["unknown", "delivered"], None),
    ("cut-once", ONCE, ["unknown"], "HOLD"),
    ("cut-removed", ONCE | GONE, ["unknown"], None),
    ("over", OVER, ["failed"], "HOLD"),
    ("over-removed", OVER | GONE, ["failed"], None),
]
"""The beginning of a name is what the next hop does at its first attempt."""
NEXT: dict[str, Any] = {
    "retry": {"intervals": ["100ms"], "unknown": "retry"},
    "bounces": {"gather": "0s"},
}


class Way:
    """A next hop by one transport, which answers the first attempt for a name as the name says."""

    def __init__(self, system: System, transport: str) -> None:
        self.transport = transport
        self.met: set[str] = set()
        self.smtp = system.hop(self._script)
        self.provider = Provider(self._answer)

    def route(self, **more: Any) -> dict[str, Any]:
        """The route of mail for r.example."""
        if self.transport == "smtp":
            return {"name": "way", "domain": "r.example", "to": self.smtp.target, **more}
        words = {"to": "{{recipient}}", "key": "{{key}}"}
        parameters = {"url": self.provider.url, "json": words, "id": "id"}
        more = {"transport": "http", "parameters": parameters, **more}
        return {"name": "way", "domain": "r.example", **more}

    def _first(self, recipient: str) -> str:
        if recipient in self.met:
            return ""
        self.met.add(recipient)
        return recipient.partition("@")[0].partition("-")[0]

    def _script(self, point: str, line: str, transaction: Transaction | None) -> Do | None:
        if point != "end of data" or not transaction:
            return None
        kind = self._first(transaction.recipients[0])
        return {
            "later": Do(line="451 4.3.0 later"),
            "refused": Do(line="554 5.3.0 no"),
            "cut": Do(drop=True),
            "held": Do(hold=True),
        }.get(kind)

    def _answer(self, document: Any) -> list[bytes]:
        return {
            "later": said("503 later"),
            "refused": said("422 no"),
            "cut": [CUT],
            "held": [HELD, *OK],
        }.get(self._first(document["to"]), OK)

    def release(self) -> None:
        """Let held answers go on."""
        self.smtp.release()
        self.provider.release()

    def count(self, recipient: str) -> int:
        """How many copies the next hop has taken of the mail of a recipient."""
        if self.transport == "smtp":
            return self.smtp.deliveries()[recipient]
        return sum(each["to"] == recipient for each in self.provider.documents)


@pytest.fixture(params=["smtp", "http"])
def way(system: System, request: pytest.FixtureRequest) -> Iterator[Way]:
    made = Way(system, request.param)
    with made.provider:
        yield made


def queuectl(daemon: Daemon, *words: str) -> str:
    """Run queuectl with the configuration of the daemon."""
    name = 2 if words[0] == "rule" else 1
    done = CliRunner().invoke(main, [*words[:name], "-c", str(daemon.path), *words[name:]])
    assert done.exit_code == 0, done.output
    return done.stdout


def begin(system: System, way: Way, **route: Any) -> Daemon:
    """Start queued; DSNs go to another next hop."""
    back = system.hop()
    file = shaping(system.folder, way.route(**route), {"name": "back", "to": back.target})
    return system.queued(shaping=file, **NEXT)


def test_outcomes(system: System, way: Way) -> None:
    daemon = begin(system, way)
    for name, columns, _, _ in CASES:
        system.enqueue(f"{name}@r.example", **{"on_failed": "hold", **columns})
    stay = {name: status for name, _, _, status in CASES if status}
    rows = system.wait_status(**stay)
    assert {name: system.events(f"{name}@r.example") for name, _, _, _ in CASES} == {
        name: events for name, _, events, _ in CASES
    }
    for name in ("refused", "cut-once", "over"):
        found = json.loads(queuectl(daemon, "explain", str(rows[name]["message_id"]), "--json"))
        (told,) = found["recipients"]
        assert (told["status"], told["attempts"]) == ("HOLD", 1), told
    (failed,) = system.attempts("refused@r.example")
    assert failed["host"]
    assert failed["transaction_seconds"] > 0
    assert failed["class"]
    assert "5.3.0" in failed["reply"]
    (sent,) = system.ask("SELECT recipient, sent_to FROM reports")
    assert (sent["recipient"], sent["sent_to"]) == (
        "refused-bounced@r.example", "sender@example.org",
    )  # fmt: skip


def test_hold_release_and_what_an_operator_reads(system: System, way: Way) -> None:
    daemon = begin(system, way)
    queuectl(daemon, "trace", "--domain", "r.example", "--for", "1h", "--background")
    daemon.wait_log("traces begin")
    held = system.enqueue("held@r.example")
    until(lambda: way.met)
    found = json.loads(queuectl(daemon, "explain", str(held), "--json"))["recipients"][0]
    assert found["status"] == "SENDING"
    assert queuectl(daemon, "hold", "--recipient", "held@r.example", "--reason", "look", "--yes")
    way.release()
    system.wait_empty()  # an attempt that was under way has the last word
    queuectl(daemon, "rule", "add", "stop", "--domain", "r.example", "--reason", "look")
    taken = system.enqueue("taken@r.example")
    system.wait_status(taken="HOLD")
    queuectl(daemon, "rule", "remove", "stop")
    queuectl(daemon, "release", "--recipient", "taken@r.example", "--yes")
    system.wait_empty()
    assert way.count("taken@r.example") == 1
    traced = until(lambda: system.ask("SELECT dialogue FROM transcripts ORDER BY message_id"))
    assert traced
    shown = queuectl(daemon, "show", str(taken), "--transcript")
    assert "127.0.0.1" in shown
    (row,) = system.attempts("taken@r.example")
    assert row["address"] == "127.0.0.1"
    if way.transport == "http":
        assert "HTTP 202 Accepted id=7" in shown
        assert "POST to 127.0.0.1" in shown


def test_a_budget(system: System, way: Way) -> None:
    """No window of a second has more than the rate."""
    daemon = begin(system, way, rate="5/s")
    for number in range(20):
        system.enqueue(f"taken-{number}@r.example", sender="x@a.example")
    system.wait_empty()
    daemon.stop()
    ends = sorted(each["ended_at"] for each in system.attempts())
    assert len(ends) == 20
    span = (ends[-1] - ends[0]).total_seconds()
    assert 19 / 5 * 0.9 <= span <= 19 / 5 * 2
