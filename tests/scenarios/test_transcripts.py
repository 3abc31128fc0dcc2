"""Transcripts, traces and the log of attempts, with a daemon and a next hop."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.support.nexthop import at
from tests.support.system import System
from tests.support.waiting import PATIENCE, until

LATER = {"intervals": ["1h"]}
REFUSED = "550 5.1.1 \x1b]0;x\x07 unknown"
DELAYS = ("dns", "connect", "tls", "transaction", "queue")


def queuectl(system: System, folder: Path, *words: str) -> subprocess.Popen[str]:
    config = folder / "queuectl.yaml"
    config.write_text(yaml.safe_dump({"environment": {"database": {"uri": system.uri}}}))
    program = Path(sys.executable).parent / "queuectl"
    return subprocess.Popen([program, *words, "-c", config], stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_a_failure_has_a_transcript_and_a_trace_has_those_of_deliveries(
    system: System, tmp_path: Path
) -> None:
    hop = system.hop()
    refusing = system.hop(at("RCPT", REFUSED))
    routes = {"good.example": hop.target, "bad.example": refusing.target}
    words = ("trace", "--domain", "none.example", "--for", "1h", "--background")
    queuectl(system, tmp_path, *words).communicate(timeout=PATIENCE)
    daemon = system.queued(routes=routes, retry=LATER, log={"attempts": True, "format": "json"})
    daemon.wait_log("traces begin")
    system.ask("UPDATE traces SET expires_at = now() RETURNING id")
    for domain in ("good", "bad"):
        system.enqueue(f"bob@{domain}.example")
    system.wait_queue(lambda rows: [row["status"] for row in rows] == ["HOLD"])
    (said,) = system.ask("SELECT message_id, row_ids, traces, dialogue FROM transcripts")
    (failed,) = system.attempts("bob@bad.example")
    assert (said["message_id"], said["row_ids"]) == (failed["message_id"], [failed["row_id"]])
    assert "> RCPT TO:<bob@bad.example>" in said["dialogue"]
    assert "< 550 5.1.1 \ufffd]0;x\ufffd unknown" in said["dialogue"]
    (delivered,) = system.attempts("bob@good.example")
    for attempt in (failed, delivered):
        assert attempt["address"] == "127.0.0.1"
        assert 0 < attempt["connect_seconds"] < 10
        assert 0 < attempt["transaction_seconds"] < 10
    lines = {event["to"]: event for event in daemon.events("attempt")}
    assert set(lines) == {"bob@good.example", "bob@bad.example"}
    assert lines["bob@bad.example"]["class"] == "unknown_user"
    line = lines["bob@good.example"]
    assert "class" not in line
    assert line["from"] == delivered["sender"]
    assert (line["relay"], line["address"], line["dsn"], line["status"]) == (
        hop.target, "127.0.0.1", "2.0.0", "delivered",
    )  # fmt: skip
    assert all(line[f"delay_{phase}"] >= 0 for phase in DELAYS)
    assert line["delay"] >= line["delay_transaction"] >= 0  # whole milliseconds

    shown = queuectl(system, tmp_path, "show", str(said["message_id"]), "--transcript")
    text = shown.communicate(timeout=PATIENCE)[0]
    assert "unknown" in text
    assert "\x1b" not in text
    trace = queuectl(system, tmp_path, "trace", "--domain", "good.example", "--for", "1h", "--json")
    try:
        daemon.wait_log("traces begin", 2)
        daemon.wait_log("traces end")  # that of none.example, with the same heartbeat
        system.enqueue("eve@good.example")
        system.enqueue("eve@bad.example")
        until(lambda: system.ask("SELECT 1 FROM transcripts WHERE traces IS NOT NULL"))
        system.ask("UPDATE traces SET expires_at = now() RETURNING id")
        output = trace.communicate(timeout=PATIENCE)[0]
    finally:
        trace.kill()
    (traced,) = [json.loads(output)]
    assert (traced["event"], traced["recipient"]) == ("delivered", "eve@good.example")
    assert "> content: " in traced["dialogue"]
