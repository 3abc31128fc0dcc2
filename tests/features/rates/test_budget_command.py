"""`queuectl budget`, and budgets in `explain` and `route`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
import yaml
from click.testing import CliRunner, Result

from queued.cli.queuectl import main
from tests.support.rows import column, fetch, message, row

ROUTES = [
    {"name": "slow", "tenant": "shop", "to": "mx", "rate": "10/min", "burst": 3, "per": "tenant"},
]

type Command = Callable[..., Result]


@pytest.fixture
def command(database: str, tmp_path: Path) -> Command:
    """Run queuectl on the test's database, with a route that has a rate."""
    path = tmp_path / "queued.yaml"
    (tmp_path / "shaping.yaml").write_text(yaml.safe_dump({"routes": ROUTES}))
    environment = {"database": {"uri": database}}
    path.write_text(yaml.safe_dump({"environment": environment, "shaping": "shaping.yaml"}))

    def run(*words: str) -> Result:
        place = 2 if words[0] == "budget" else 1
        return CliRunner().invoke(main, [*words[:place], "-c", str(path), *words[place:]])

    return run


def test_set_and_list(db: psycopg.Connection, command: Command) -> None:
    assert command("budget", "list").stdout.splitlines()[1:] == []
    said = command("budget", "set", "credential:ses-1", "50/s", "--month-most", "1000").stdout
    assert said == "credential:ses-1 is now 50/s, a new budget\n"
    said = command("budget", "set", "credential:ses-1", "3000/min").stdout
    assert said == "credential:ses-1 is already 50/s\n", "and the sum stays"
    command("budget", "set", "collector:x", "10/min", "--note", "as agreed")
    fetch(db, "SELECT budget_reserve('collector:x', 1)::text")
    lines = [line.split() for line in command("budget", "list").stdout.splitlines()]
    assert lines[0] == ["BUDGET", "RATE", "BURST", "NEXT", "MONTH", "AT", "MOST", "LOST", "NOTE"]
    assert lines[1][:3] + lines[1][-4:] == ["collector:x", "10/min", "1", "-", "-", "as", "agreed"]
    assert lines[2] == ["credential:ses-1", "50/s", "1", "now", "0", "1000", "-"]
    (found,) = json.loads(command("budget", "list", "--json", "credential:").stdout)
    assert (found["rate"], found["month_most"]) == (50.0, 1000)
    command("budget", "set", "credential:ses-1", "50", "--month-most", "none")
    assert column(db, "SELECT month_most FROM budgets WHERE key = 'credential:ses-1'") == [None]
    assert column(db, "SELECT condition FROM audit WHERE action = 'budget set'")[:2] == [
        "credential:ses-1",
        "collector:x",
    ]
    slip = command("budget", "set", "credential:ses1", "1/s")
    assert slip.stdout == "credential:ses1 is now 1/s, a new budget\n"
    assert slip.stderr == "did you mean credential:ses-1? It has the rate that it had\n"
    nothing = command("budget", "list", "other")
    assert (nothing.exit_code, nothing.stderr) == (1, "error: no budget begins with other\n")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("k", "fast"), "expected a number per s, min, h or d"),
        (("k", "0/s"), "expected a number per s, min, h or d"),
        (("two words", "5/s"), "expected 1 to 100 letters, digits and . _ : @ -"),
        (("route:slow:shop", "5/s"), "set its rate in shaping.yaml"),
        (("k", "5/s", "--month-most", "-1"), "expected a whole number or none"),
        (("k", "5/s", "--note", "x" * 501), "at most 500"),
    ],
)
def test_mistakes(db: psycopg.Connection, command: Command, words: tuple[str], reason: str) -> None:
    result = command("budget", "set", *words)
    assert result.exit_code == 2
    assert reason in result.stderr
    assert column(db, "SELECT count(*) FROM budgets") == [0]


def test_explain_names_the_budget_and_its_time(db: psycopg.Connection, command: Command) -> None:
    message(db, 1)
    row(db, 1, tenant="shop", recipient="a@b.example")
    row(db, 1, recipient="c@b.example", metadata={"_budget": "credential:x"})
    row(db, 1, recipient="d@b.example", metadata={"_budget": "credential:none"})
    command("budget", "set", "credential:x", "1/min")
    db.execute("SELECT budget_of_route('route:slow:shop', 10 / 60.0, 3)")
    for key in ("route:slow:shop", "credential:x"):
        db.execute("SELECT budget_reserve(%s, 4, '1 hour')", (key,))
    rows = json.loads(command("explain", "--json", "1").stdout)["recipients"]
    said = {r["recipient"]: (r["waits_for"], [b["key"] for b in r["budgets"]]) for r in rows}
    for recipient, key, rate in (
        ("a", "route:slow:shop", "10/min"),
        ("c", "credential:x", "1/min"),
    ):
        words, keys = said[f"{recipient}@b.example"]
        assert words.startswith(f"a time of budget {key}: it has {rate}, and its next time is 20")
        assert keys == [key]
    assert said["d@b.example"][1] == []
    assert "  budget     route:slow:shop: 10/min, next time 20" in command("explain", "1").stdout


def test_lost_times_are_shown_with_their_reason(db: psycopg.Connection, command: Command) -> None:
    message(db, 1)
    row(db, 1, recipient="c@b.example", metadata={"_budget": "credential:x"})
    command("budget", "set", "credential:x", "1/min")
    db.execute("UPDATE budgets SET lost_share = 0.34, lost_why = 'next hop', lost_at = now()")
    assert "34%, next hop" in command("budget", "list").stdout
    words = "it loses 34% of its times: the next hop has no free connection in time\n"
    assert words in command("explain", "1").stdout
    assert "credential:x loses 34% of its times" in command("doctor", "--no-network").stdout
    db.execute("UPDATE budgets SET lost_at = now() - interval '1 hour'")
    assert "34%" not in command("budget", "list").stdout


def test_route_shows_the_rate(db: psycopg.Connection, command: Command) -> None:
    shown = command("route", "a@127.0.0.1.invalid", "--tenant", "shop").stdout
    assert "rate       10/min, 3 at once for each tenant\n" in shown
