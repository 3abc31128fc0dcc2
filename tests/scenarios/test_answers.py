"""Answer classes in the log of attempts, and SIGHUP for the rules."""

from __future__ import annotations

from pathlib import Path

from tests.support.nexthop import Do, Transaction
from tests.support.system import System

RULE = "rules:\n  - {text: closed for lunch, class: %s, lasting: permanent}\n"


def at_lunch(point: str, line: str, transaction: Transaction | None) -> Do | None:
    return Do(line="450 Closed for lunch") if point == "RCPT" else None


def test_reload_reads_answer_rules_and_survives_a_broken_file(
    system: System, tmp_path: Path
) -> None:
    system.expected = {"configuration kept as it was"}
    file = tmp_path / "lunch.yaml"
    queued = system.queued(system.hop(at_lunch), retry={"intervals": ["1h"]})
    system.enqueue("shipped@hop.example")
    system.wait_status(shipped="DEFERRED")
    file.write_text(RULE % "policy")
    config = {**queued.config, "answers": str(file)}
    queued.reload(config)
    system.enqueue("own@hop.example")
    system.wait_status(shipped="DEFERRED", own="HOLD")
    file.write_text(RULE % "polcy")
    queued.reload(config)
    (problem,) = queued.wait_log("configuration kept as it was")["problems"]
    assert problem.endswith(
        "lunch.yaml:2: rules[0].class: no class 'polcy'; did you mean 'policy'?"
    )
    system.enqueue("kept@hop.example")
    system.wait_status(shipped="DEFERRED", own="HOLD", kept="HOLD")
    file.write_text(RULE % "other")
    queued.reload(config)
    system.enqueue("new@hop.example")
    system.wait_status(shipped="DEFERRED", own="HOLD", kept="HOLD", new="HOLD")
    assert {a["recipient"].partition("@")[0]: a["class"] for a in system.attempts()} == {
        "shipped": "other", "own": "policy", "kept": "policy", "new": "other",
    }  # fmt: skip
