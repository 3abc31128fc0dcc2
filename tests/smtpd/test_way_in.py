"""The functions between the last octet of a message and its 250: docs/flow.md has them."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.serving import Client, serving
from tests.support.tracer import traced, usual

FLOW = Path(__file__).parents[2] / "docs" / "flow.md"
HEADING = "## From the last octet to the 250: the functions"
LAST = "smtpd/session/connection.py: Connection.flush"
MOST_FUNCTIONS, MOST_FILES = 30, 12
LINES = (b"x" * 62 + b"\r\n") * 63  # 4 KB with the header


def documented() -> list[str]:
    """The list in docs/flow.md, `file.py: function` each."""
    section = FLOW.read_text(encoding="utf-8").partition(HEADING)[2].partition("\n## ")[0]
    return re.findall(r"`(\w+(?:/\w+)+\.py: [\w.]+)`", section)


def deliver(client: Client) -> list[str]:
    """Send a message; return the functions that smtpd calls from its last octets to the 250."""
    for command in ("MAIL FROM:<a@b.example>", "RCPT TO:<r@c.example>", "DATA"):
        assert client.say(command)[0] in "23"
    with traced() as calls:
        client.send(b"Subject: x\r\n\r\n" + LINES + b".\r\n")
        assert client.reply()[:3] == "250"
    return calls


def test_a_message_passes_the_functions_of_the_documentation(database: str) -> None:
    with serving(database) as port, Client(port) as client:
        assert client.reply()[:3] == "220"
        assert client.say("EHLO c")[:3] == "250"
        deliver(client)
        traces = [deliver(client) for _ in range(9)]
    way = usual(traces)
    way = way[: way.index(LAST) + 1]  # the line in the log comes after the 250
    files = {name.partition(":")[0] for name in way}
    found = "\n".join(f"{place}. `{name}`" for place, name in enumerate(way, 1))
    assert way == documented(), found
    assert len(way) <= MOST_FUNCTIONS
    assert len(files) <= MOST_FILES
