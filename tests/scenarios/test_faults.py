"""A rule and a WHERE that fail on mail that any sender can send."""

from __future__ import annotations

import pytest

from tests.support.system import System


@pytest.mark.slow
def test_one_mail_on_which_a_rule_fails_stops_no_other(system: System) -> None:
    hop = system.hop()
    one = system.queued(hop, workers=[{"name": "one", "where": "priority <= 9"}])
    cast = "(metadata->>'n')::int > 3"
    holding = {"name": "high", "action": "hold", "where": cast, "every": "1s"}
    two = system.queued(
        hop, workers=[{"name": "two", "where": f"metadata->>'n' IS NULL OR NOT ({cast})"}, holding]
    )
    for number in range(60):
        system.enqueue(f"x{number}@d{number % 7}.example")
        if number % 20 == 7:
            system.ask(
                "WITH m AS (INSERT INTO messages (id, size, trace, body)"
                " VALUES (nextval('message_ids'), 1, '', E'\\r\\n') RETURNING id)"
                " INSERT INTO queue (message_id, sender, recipient, domain, metadata)"
                " SELECT id, 'e@EVIL.example', %s, 'd1.example', '{\"n\": \"alpha\"}' FROM m",
                f"bad{number}@d1.example",
            )
    hop.wait_kept(60)
    rows = system.wait_queue(lambda rows: [r["status"] for r in rows] == ["HOLD"] * 3)
    error = "rule high fails on this row: SQLSTATE 22P02 (no value of that type)"
    assert {row["hold_reason"] for row in rows} == {error}
    assert set(hop.deliveries().values()) == {1}
    named = [(e["condition"], e["row"]) for d in (one, two) for e in d.events("a condition fails")]
    assert sorted(row for who, row in named if who == "rule high") == [row["id"] for row in rows]
    # without its rule the mail goes out, with no restart
    system.ask("DELETE FROM rules")
    system.ask("UPDATE queue SET status = 'QUEUED'")
    system.ask("NOTIFY pgmta_queue")
    hop.wait_kept(63)
    system.wait_empty()
