"""Rows are counted by values that are no columns."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import psycopg
import yaml
from click.testing import Result

from tests.support.queuectl import queuectl
from tests.support.rows import attempt, fetch, message, row


def test_rows_are_counted_by_next_hop_age_class_and_tenant(
    db: psycopg.Connection, config: Path
) -> None:
    routes = [
        {"name": "odd", "metadata.k": "x'{where}%", "to": "other.example"},
        {"name": "routed", "domain": "*.routed.example", "to": "relay.example:2525"},
    ]
    config.with_name("shaping.yaml").write_text(yaml.safe_dump({"routes": routes}))
    config.write_text(f"{config.read_text()}shaping: shaping.yaml\n")
    message(db, 1)
    rows = {"b.example": "0 s", "c.routed.example": "2 min", "d.routed.example": "3 h"}
    for number, (domain, age) in enumerate({**rows, "e.example": "5 d"}.items()):
        row_id = row(db, 1, recipient=f"r{number}@{domain}", domain=domain, tenant=f"t{number % 2}")
        db.execute("UPDATE queue SET ts = now() - %s::interval WHERE id = %s", [age, row_id])
        if number:
            db.execute("UPDATE queue SET attempts = 2 WHERE id = %s", [row_id])
            (began,) = fetch(db, "SELECT ts FROM queue WHERE id = %s", row_id)
            for attempts, name in ((1, "other"), (2, "greylisted" if number > 1 else "full")):
                attempt(db, row_id, attempt=attempts, started_at=began,
                        ended_at=began + timedelta(seconds=1), **{"class": name})  # fmt: skip

    def command(*words: str) -> Result:
        return queuectl(config, "list", "--count", *words)

    def counted(by: str, *words: str) -> dict[str, int]:
        done = command("--by", by, "--json", *words)
        assert done.exit_code == 0, done.stderr
        rows = json.loads(done.stdout)
        return {row[by]: row["count"] for row in rows}

    hops = {"relay.example:2525": 2, "b.example": 1, "e.example": 1}
    assert counted("next-hop") == hops
    assert counted("next-hop", "--tenant", "t1") == {"relay.example:2525": 1, "e.example": 1}
    assert list(counted("age").items()) == [
        ("below 1m", 1), ("1m to 10m", 1), ("1h to 4h", 1), ("3d and more", 1),
    ]  # fmt: skip
    assert counted("class") == {None: 1, "full": 1, "greylisted": 2}
    assert counted("tenant") == {"t0": 2, "t1": 2}
    assert "did you mean 'next-hop'" in command("--by", "next_hop").stderr
