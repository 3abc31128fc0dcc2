"""For what a row of the queue waits, in words (pure)."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pgmta.command import age, instant
from pgmta.password import KEY_PREFIX
from pgmta.states import Status


def waits_for(row: dict[str, Any], now: datetime, deliver: dict[str, str | None]) -> str:
    """Return the next event that the row waits for, in one sentence.

    `deliver` has the running delivering workers, each with the condition of the rows it takes.
    """
    status = row["status"]
    leased = row["lease_until"] is not None and row["lease_until"] > now
    if status == Status.HOLD:
        until = row["hold_until"]
        # a key of the HTTP API releases what it holds
        key = "the key or " if (row["held_by"] or "").startswith(KEY_PREFIX) else ""
        ends = f"until {instant(until)}" if until else f"until {key}an operator releases it"
        if row["malformed"]:
            ends = "until an operator deletes it, as an address holds control characters"
        elif row["send_at"] is not None and row["send_at"] > now:
            ends += f", but not sent before {instant(row['send_at'])}"
        return f"on hold by {row['held_by']}, {ends}: {row['hold_reason']}"
    if status == Status.DELETE:
        return "its deletion by queued" + (", after the attempt under way" if leased else "")
    if status == Status.REPORT:
        return _dsn(row, leased=leased)
    if status == Status.SENDING:
        if leased:
            return f"the attempt under way by {row['lease_owner']}"
        if not row["workers"] and not row["rules"]:
            return f"a worker: {_others(row, deliver)}"
        return f"a worker to take it over: the lease of {row['lease_owner']} ran out"
    if (row["send_at"] is not None and row["send_at"] > now) or status == Status.SCHEDULED:
        return _its_time(row, now, deliver)
    if row["rules"]:
        return f"being put on hold by {row['rules'][0]}"
    if leased:
        return f"the end of the attempt by {row['lease_owner']}, begun before its release"
    if not row["workers"]:
        return f"a worker: {_others(row, deliver)}"
    wait = (row["next_attempt"] - now).total_seconds()
    if wait <= 0:
        return "its turn: it is due"
    if status == Status.QUEUED and row["last_reply"]:  # put off, or released
        until = f"{instant(row['next_attempt'])}"
        return f"its time in {age(wait)}: put off until {until}, {row['last_reply']}"
    return f"its next attempt in {age(wait)}"


def _its_time(row: dict[str, Any], now: datetime, deliver: dict[str, str | None]) -> str:
    """Say when a scheduled row is sent, and by which worker."""
    wait = (row["send_at"] - now).total_seconds()
    when = f"its time in {age(wait)}: it is sent at {instant(row['send_at'])}"
    if wait <= 0:
        when = f"queued to take it up: its time was {instant(row['send_at'])}"
    if row["rules"]:
        return f"{when}, unless {row['rules'][0]} puts it on hold then"
    return when if row["workers"] else f"{when}, and then a worker: {_others(row, deliver)}"


def _dsn(row: dict[str, Any], *, leased: bool) -> str:
    """Say what a row waits for in REPORT."""
    first = f"the end of the attempt by {row['lease_owner']}, then " if leased else ""
    to = (
        f"a DSN to <{row['sender']}>"
        if row["sender"]
        else "a decision on its DSN: it has no sender"
    )
    return f"{first}{to} by queued: {row['hold_reason'] or row['report_kind']}"


def _others(row: dict[str, Any], deliver: dict[str, str | None]) -> str:
    """Say why no worker takes the row."""
    if not deliver:
        return "no delivering worker runs"
    each = "; ".join(
        f"{name} takes {' '.join((condition or 'every row').split())}"
        for name, condition in sorted(deliver.items())
    )
    return f"none that runs takes it, with priority {row['priority']} ({each})"
