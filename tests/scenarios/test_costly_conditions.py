"""Conditions of operators that cost seconds: mail goes on."""

from __future__ import annotations

import psycopg
import pytest

from tests.support.system import System

ON_ROWS = "factorial(20000 + attempts) < id"
"""Takes 0.6 s a row, and is true for none."""
CONSTANT = "repeat('x', 900000000) = sender"
"""Takes seconds before it sees a row."""
RULE = ("INSERT INTO rules (name, action, condition, reason, origin)"
        " VALUES ('slow', 'hold', %s, 'r', 'operator')")  # fmt: skip


@pytest.mark.slow
def test_mail_goes_on_beside_conditions_that_take_too_long(
    system: System, db: psycopg.Connection
) -> None:
    system.expected |= {
        "a standing rule is set aside: its condition takes too long",
        "a suspension is set aside: its condition takes too long",
    }
    for condition in (ON_ROWS, CONSTANT, "domain = 'not.example'"):
        db.execute("SELECT queue_suspend('condition', %s, 'r')", [condition])
    db.execute(RULE, [ON_ROWS])
    for number in range(20):
        system.enqueue(f"x{number}@a.example")
    kept = system.enqueue("x@not.example")
    system.queued(system.hop())
    (row,) = system.wait_queue(lambda rows: len(rows) == 1)
    assert row["message_id"] == kept
    assert system.ask("SELECT name FROM rules WHERE slow_at IS NOT NULL")
    (counting,) = system.ask("SELECT value FROM suspensions WHERE slow_at IS NULL")
    assert counting["value"] == "domain = 'not.example'"
