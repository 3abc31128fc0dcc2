"""The functions on the ways of a message and of a login: docs/develop/flow.md has them."""

from __future__ import annotations

import re
import ssl
from contextlib import ExitStack
from itertools import repeat
from pathlib import Path

from tests.support.certificates import Certificate
from tests.support.serving import Client, serving
from tests.support.tracer import traced, usual
from tests.support.users import add_user, log_in
from tests.support.waiting import until

FLOW = Path(__file__).parents[2] / "docs" / "develop" / "flow.md"
HEADING = "## From the last octet to the 250: the functions"
LOGIN = "## From STARTTLS to the 235: the functions"
LAST = "smtpd/session/connection.py: Connection.flush"
LOOKS = {"pgmta/intake/chunk_writer.py: ChunkWriter.purge", "smtpd/server/gate.py: Gate._close"}
RESUMED = "smtpd/session/connection.py: Connection.resume"
MOST_FUNCTIONS, MOST_FILES = 33, 17
LINES = (b"x" * 62 + b"\r\n") * 63  # 4 KB with the header


def documented(heading: str) -> list[str]:
    """The list in docs/develop/flow.md, `file.py: function` each."""
    section = FLOW.read_text(encoding="utf-8").partition(heading)[2].partition("\n## ")[0]
    return re.findall(r"^\d+\. `(\w+(?:/\w+)+\.py: [\w.]+)`", section, re.MULTILINE)


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
    assert way == documented(HEADING), found
    assert len(way) <= MOST_FUNCTIONS
    assert len(files) <= MOST_FILES


def idle_functions() -> set[str]:
    """Return the functions that the process calls again and again without a session."""
    with traced() as calls:
        until(lambda: set(calls) >= LOOKS, describe="looks of Committer and Gate")
    return set(calls)


def begin_session(client: Client, context: ssl.SSLContext, name: str) -> list[str]:
    """Begin TLS and log in; return the functions that smtpd calls from STARTTLS to the 235."""
    assert client.reply()[:3] == "220"
    assert client.say("EHLO c")[:3] == "250"
    with traced() as calls:
        assert client.say("STARTTLS")[:3] == "220"
        client.over(context.wrap_socket(client.socket, server_hostname="mx.example"))
        until(lambda: RESUMED in calls, describe="commands under TLS")
        assert client.say("EHLO c")[:3] == "250"
        assert log_in(client, name, "right one")[:3] == "235"
    return calls


def test_a_login_over_tls_passes_the_functions_of_the_documentation(
    database: str, tmp_path: Path
) -> None:
    root = Certificate.root()
    certificate, key = root.issue("mx.example").files(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=root.der)
    names = [f"user{number}" for number in range(8)]  # each is unknown to the process as yet
    for name in names:
        add_user(database, name, "right one")
    certificates = [{"certificate": str(certificate), "key": str(key)}]
    with (
        serving(database, listen=[{"role": "submission"}], certificates=certificates) as port,
        ExitStack() as stack,
    ):
        idle = idle_functions()
        clients = [stack.enter_context(Client(port)) for _ in names]  # none ends meanwhile
        traces = [begin_session(*each) for each in zip(clients, repeat(context), names)]
        way = [name for name in usual(traces) if name in documented(LOGIN) or name not in idle]
    found = "\n".join(f"{place}. `{name}`" for place, name in enumerate(way, 1))
    assert way == documented(LOGIN), found
