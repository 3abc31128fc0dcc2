"""How a message came in: user, client and protocol, for `queuectl show` and `queuectl explain`."""

from __future__ import annotations

import re
from typing import Any

from pgmta.command import print_line

# smtpd writes the field, and replaces other characters of the client's name (smtpd/received.py)
_RECEIVED = re.compile(
    r"Received: from (?P<helo>[A-Za-z0-9.:_\[\]?-]+) "
    r"\(\[(?:IPv6:)?(?P<address>[0-9A-Fa-f.:]+)\]\)\s+"
    r"by \S+ \(pgmta\) with (?P<protocol>[A-Z0-9]+(?: \([^()\r\n]*\))?)\s"
)


type Came = dict[str, str | None]
"""User, client, helo (the name that the client gave), protocol and origin."""


def arrival(message: dict[str, Any] | None, history: list[dict[str, Any]]) -> Came:
    """Return who submitted a message, and from where; None for each fact that is unknown.

    The log of attempts keeps the user. Only the message has the client.
    """
    users = [entry["submitted_by"] for entry in history if entry["submitted_by"]]
    user = message["submitted_by"] if message else None
    found = _RECEIVED.match(message["trace"]) if message else None
    return {
        "user": user or (users[0] if users else None),
        "client": found["address"] if found else None,
        "helo": found["helo"] if found else None,
        "protocol": found["protocol"] if found else None,
        "origin": message["origin"] if message else None,
    }


def print_arrival(came: Came) -> None:
    """Write a line about it, if anything is known."""
    parts = []
    if came["user"]:
        parts.append(f"user {came['user']}")
    if came["client"]:
        parts.append(f"client {came['client']} ({came['helo']}), by {came['protocol']}")
    if came["origin"]:
        parts.append(f"origin {came['origin']}")
    if parts:
        print_line(f"came from {', '.join(parts)}")
    if not came["client"] and not came["origin"]:  # the message is gone
        print_line("mail by SMTP has its client in the log of smtpd: line `accepted` with this id")
