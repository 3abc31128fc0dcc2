"""Words for what holds PostgreSQL's xmin horizon: who it is, what it costs, and what ends it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pgmta.command import age

_SCANNED_ROWS_PER_S = 1_000_000  # dead ones that a look from the beginning of the queue passes


def described(row: Mapping[str, Any]) -> str:
    """Return a row of the view horizon_holders in words."""
    of = row["application"] or "no name"
    old = f"{row['transactions']} transactions old"
    if row["seconds"] is not None:
        old = f"for {age(row['seconds'])}, {old}"
    match row["holder"]:
        case "session":
            who = f"pid {row['pid']} ({of}, login {row['login'] or 'none'}, {row['state']}"
        case "prepared":
            who = f"the prepared transaction {row['name']} (of {row['login']}, open"
        case "slot":
            reader = f"for the standby {of}, " if row["pid"] else ""
            who = f"the replication slot {row['name']} ({reader}{row['state']}"
        case _:
            who = f"the standby {of} (hot_standby_feedback, pid {row['pid']}"
    joint = " " if row["seconds"] is not None else ", "
    return f"{who}{joint}{old})"


def cost(dead: int) -> str:
    """Return what rows cost that vacuum may not remove."""
    found = f"{dead} dead rows stay in the queue"
    if dead < _SCANNED_ROWS_PER_S / 100:
        return found
    seconds = dead / _SCANNED_ROWS_PER_S
    return f"{found}, and a claim that looks at all of them takes {seconds:.2f} s more"


def remedy(row: Mapping[str, Any]) -> str:
    """Return what ends it."""
    match row["holder"]:
        case "session":
            return f"end its transaction there, or SELECT pg_terminate_backend({row['pid']});"
        case "prepared":
            name = str(row["name"]).replace("'", "''")
            return f"COMMIT PREPARED or ROLLBACK PREPARED '{name}';"
        case "slot" if not row["pid"]:
            return f"start its standby, or SELECT pg_drop_replication_slot('{row['name']}');"
        case _:
            return "on that standby end the long query, or switch hot_standby_feedback off"
