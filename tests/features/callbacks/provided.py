"""Mail that a provider took: attempts in the log, and recipients of a campaign."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psycopg

from tests.features.suppressions.campaign import Campaign
from tests.web.web import Answer, Web

HOST = "api.example.com:443"
SECRET = "0123456789abcdef"
EVENTS = {
    "key": "key", "kind": ["event", "type"], "code": "code", "sub_type": "sub", "text": "text",
    "time": "at", "kinds": {
        "ok": "delivered", "bad": "failed", "bad gone": "bounced", "spam": "complained",
    },
}  # fmt: skip


class Provided:
    """Attempts of mail of a campaign: message and row of the number n are n and 100 + n."""

    def __init__(self, campaign: Campaign) -> None:
        self.campaign = campaign
        self.db = campaign.db
        self._number = 0

    def take(
        self, *, event: str = "delivered", host: str = HOST, tenant: str = "", days: int = 0
    ) -> int:
        """Add a recipient whose mail the provider took; return its number."""
        self._number += 1
        number = self._number
        self.campaign.add(f"r{number}@b.example")
        state = "sent" if event == "delivered" else "unknown"
        self.db.execute(
            "UPDATE campaign_recipients SET state = %s, message_id = %s WHERE campaign_id = %s"
            " AND number = %s",
            (state, number, self.campaign.id, number),
        )
        path = json.dumps({"_campaign": f"{self.campaign.id}.{number}.1"})
        attempt(self.db, number, event, host, tenant, days, path)
        return number

    def key(self, number: int) -> str:
        """Return the word {{key}} of that mail."""
        return f"pgmta-{number}-{100 + number}"

    def note(
        self,
        events: Iterable[tuple[int, str]],
        hosts: Iterable[str] = (HOST,),
        tenants: list[str] | None = None,
    ) -> list[str]:
        """Note events, each a number and a kind, by SQL; return their outcomes."""
        return note(self.db, events, hosts, tenants)

    def log(self, number: int) -> tuple[str | None, bool, bool]:
        """Return the class, and whether it was confirmed and complained about."""
        row = self.db.execute(
            "SELECT class, confirmed_at IS NOT NULL, complained_at IS NOT NULL"
            " FROM attempt_history WHERE message_id = %s",
            (number,),
        ).fetchone()
        assert row
        return row

    def books(self) -> dict[str, int]:
        """Return the counts that are not 0, after a comparison with the recipients."""
        row = self.db.execute(
            "SELECT to_jsonb(s) - 'campaign_id' FROM campaign_sums AS s WHERE campaign_id = %s",
            (self.campaign.id,),
        ).fetchone()
        counted = {name: int(value) for name, value in row[0].items() if value} if row else {}
        rows = self.db.execute(
            "SELECT state, count(*) FROM campaign_recipients GROUP BY state UNION ALL"
            " SELECT 'bounced', count(*) FROM campaign_recipients WHERE bounced HAVING count(*) > 0"
            " UNION ALL SELECT 'complained', count(*) FROM campaign_recipients WHERE complained"
            " HAVING count(*) > 0"
        ).fetchall()
        assert counted == dict(rows)
        return counted


def note(
    db: psycopg.Connection,
    events: Iterable[tuple[int, str]],
    hosts: Iterable[str] = (HOST,),
    tenants: list[str] | None = None,
) -> list[str]:
    """Note events, each a number and a kind, by SQL; return their outcomes."""
    events = list(events)
    row = db.execute(
        "SELECT callbacks_note(%s, %s, %s::bigint[], %s::bigint[], %s, %s, %s, %s, %s,"
        " %s::timestamptz[])",
        (
            list(hosts), tenants, [n for n, _ in events], [100 + n for n, _ in events],
            [kind for _, kind in events], [""] * len(events), ["7"] * len(events),
            ["sub"] * len(events), ["words"] * len(events), [None] * len(events),
        ),
    ).fetchone()  # fmt: skip
    assert row
    return list(row[0])


def attempt(
    db: psycopg.Connection, number: int, event: str, host: str, tenant: str, days: int, path: str
) -> None:
    """Put an attempt into the log."""
    db.execute(
        "INSERT INTO attempts (ended_at, started_at, row_id, message_id, lease_token, attempt,"
        " code, event, sender, recipient, domain, worker, host, command, enhanced, reply, tenant,"
        " metadata) VALUES (now() - make_interval(days => %s), now() - make_interval(days => %s),"
        " %s, %s, 1, 1, 250, %s, 's@a.example', %s, 'b.example', 'w', %s, '', '', 'HTTP 202', %s,"
        " %s)",
        (days, days, 100 + number, number, event, f"r{number}@b.example", host, tenant, path),
    )


def secret_file(folder: Path, name: str, text: str = SECRET) -> str:
    """Write a file that others can't read; return its name."""
    file = folder / name
    file.touch(0o600)
    file.write_text(f"{text}\n")
    return name


def signed(folder: Path, **more: Any) -> dict[str, Any]:
    """Return a callback that is signed by HMAC over time and body."""
    return {
        "hosts": ["api.example.com"],
        "proof": {
            "by": "hmac", "keys": [secret_file(folder, "hook.key")],
            "message": "{{header.X-Time}}.{{body}}", "signature": "header.X-Sign",
            "timestamp": "header.X-Time",
        },
        "events": EVENTS,
    } | more  # fmt: skip


def call(
    web: Web, events: Any, name: str = "hook", secret: str = SECRET, at: float | None = None
) -> Answer:
    """Send a signed callback, as a provider does."""
    body = events if isinstance(events, bytes) else json.dumps(events).encode()
    when = str(int(time.time() if at is None else at))
    mac = hmac.digest(secret.encode(), when.encode() + b"." + body, hashlib.sha256)
    sign = base64.b64encode(mac).decode()
    return web.ask("POST", f"/callbacks/{name}", body, X_Time=when, X_Sign=sign)
