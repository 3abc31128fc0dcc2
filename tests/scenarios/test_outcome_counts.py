"""Each attempt is counted once, by what became of it: `outcome_counts`, and `attempts.late`."""

from __future__ import annotations

import signal
from collections import Counter

import pytest

from tests.support.nexthop import Do, Script, at
from tests.support.system import System

PROCESS = {"lease": "3s", "poll": "100ms"}
LATER = {"intervals": ["1h"]}
NONE = dict.fromkeys(("settled", "not_settled", "not_claimed", "gone", "moved_on"), 0)
BUSY = "451 4.3.0 Busy"


def held_then(point: str, line: str = "", *, drop: bool = False) -> Script:
    """A next hop that waits there for `release`, and then does this."""
    return lambda at, _, __: Do(hold=True, line=line, drop=drop) if at == point else None


def counts(system: System) -> dict[str, int]:
    """The view, all hours together."""
    sums = ", ".join(f"coalesce(sum({name}), 0)::integer AS {name}" for name in NONE)
    return dict(system.ask(f"SELECT {sums} FROM outcome_counts")[0])


@pytest.mark.slow
def test_every_attempt_has_one_of_five_outcomes(system: System) -> None:
    """A worker is stopped for longer than its leases, and another one takes its rows over."""
    scripts = {
        # before it is stopped
        "taken": None,
        "busy": at("MAIL", BUSY),
        "cut": at("end of data", drop=True),
        # while it is stopped, at this point
        "doubled": held_then("end of data"),
        "doubtful": held_then("end of data", drop=True),
        "refused": held_then("end of data", BUSY),
        "waiting": held_then("end of data", BUSY),
        "unsent": held_then("DATA"),
        "forgotten": held_then("end of data"),
    }
    hops = {
        name: system.hop(script) if script else system.hop() for name, script in scripts.items()
    }
    first = system.queued(
        routes={f"{name}.example": hop.target for name, hop in hops.items()},
        process=PROCESS,
        retry=LATER,
    )
    for name in scripts:
        system.enqueue(f"x@{name}.example")
    begun = {"SENDING": 6, "DEFERRED": 2}  # and one was delivered
    system.wait_queue(lambda rows: Counter(row["status"] for row in rows) == begun)
    hops["unsent"].wait(lambda: "DATA" in hops["unsent"].commands)
    for name in ("doubled", "doubtful", "refused", "waiting", "forgotten"):
        hops[name].wait(lambda hop=hops[name]: hop.transactions and hop.transactions[0].content)  # type: ignore[misc]
    assert counts(system) == {**NONE, "settled": 3}
    first.signal(signal.SIGSTOP)
    heir = system.hop()
    system.queued(
        routes={"waiting.example": system.hop(at("MAIL", BUSY)).target, "*": heir.target},
        process=PROCESS,
        retry=LATER,
    )
    system.wait_queue(lambda rows: {row["status"] for row in rows} == {"DEFERRED"})
    for name in ("doubled", "doubtful", "refused", "waiting", "unsent"):
        hops[name].release()
    first.signal(signal.SIGCONT)
    first.wait_log("row had moved on", 5)
    first.kill()
    late = {row["recipient"].split("@")[1].split(".")[0]: (row["event"], row["late"])
            for row in system.ask("SELECT * FROM attempts WHERE late IS NOT NULL")}  # fmt: skip
    assert late == {
        "doubled": ("delivered", "gone"),
        "doubtful": ("unknown", "gone"),
        "refused": ("deferred", "gone"),
        "waiting": ("deferred", "moved on"),
        "unsent": ("deferred", "gone"),
    }
    found = counts(system)
    assert found == {
        "settled": 3 + 6,  # and those of the heir
        "not_settled": 3,  # doubled, doubtful and forgotten, which the first worker never settles
        "not_claimed": 1,
        "gone": 1,
        "moved_on": 1,
    }
    (attempts,) = system.ask("SELECT count(DISTINCT (row_id, lease_token)) AS n FROM attempts")
    assert sum(found.values()) == attempts["n"]
