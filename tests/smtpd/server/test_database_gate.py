"""A database that is slow or away: clients slow down, then they hear 451 before their content."""

from __future__ import annotations

import time
from contextlib import ExitStack

import psycopg
import pytest

from smtpd.config import Limits
from smtpd.server.database_gate import Gate
from tests.support.database import PrivateServer
from tests.support.serving import Client, serving
from tests.support.waiting import until

BEGIN = ("EHLO c", "MAIL FROM:<a@b>", "RCPT TO:<r@b>", "DATA")


class Database:
    """Waits as long as it is said to."""

    lag = 0.0
    refuses = False


def test_states() -> None:
    database = Database()
    gate = Gate(Limits(slow_commit=2.0, late_commit=10.0), database)
    for database.lag, slow, closed in [
        (0.0, False, False),
        (2.5, True, False),
        (11.0, True, True),
        (9.0, True, False),
        (0.0, False, False),
    ]:
        gate.look_once()
        assert (gate.slow, gate.closed) == (slow, closed)
    for database.refuses in (True, False):
        gate.look_once()
        assert gate.closed is database.refuses


def begun(client: Client) -> str:
    """The reply to the first command that is refused; that to DATA if none is."""
    for command in BEGIN:
        reply = client.say(command)
        if reply[0] not in "23":
            return reply
    return reply


@pytest.mark.slow
@pytest.mark.usefixtures("pauses")
def test_a_stuck_commit_slows_clients_down_and_then_refuses_before_content(database: str) -> None:
    limits = {"slow_commit": "500ms", "late_commit": "2s"}
    with (
        serving(database, relay={"networks": ["127.0.0.1"]}, limits=limits,
                ingest={"wait": "60s"}) as port,
        ExitStack() as stack,
    ):  # fmt: skip
        clients = [stack.enter_context(Client(port)) for _ in range(5)]
        assert {client.reply()[:3] for client in clients} == {"220"}
        first, piped, early, deaf, blind = clients
        for client in (deaf, blind):
            for command in ("EHLO c", "MAIL FROM:<one@a>", "RCPT TO:<one@b>"):
                assert client.say(command)[:3] == "250"
        with psycopg.connect(database) as blocker:
            blocker.execute("LOCK TABLE queue IN EXCLUSIVE MODE")
            assert begun(early)[:3] == "354"  # its content comes late
            assert begun(first)[:3] == "354"
            first.send(b".\r\n")

            def seconds() -> float:
                began = time.monotonic()
                client = stack.enter_context(Client(port))
                client.reply()
                begun(client)
                return time.monotonic() - began

            until(lambda: seconds() >= 0.9, describe="clients slowed down")

            def refused() -> bool:
                client = stack.enter_context(Client(port))
                client.reply()
                return begun(client)[:9] == "451 4.3.0"

            until(refused, describe="refusals before content")
            # commands pipelined after MAIL are no errors of the client
            rest = b"RCPT TO:<r@b>\r\n" * 30 + b"DATA\r\n"
            piped.send(b"EHLO c\r\nMAIL FROM:<a@b>\r\n" + rest)
            found = [piped.reply()[:3] for _ in range(33)]
            assert found == ["250", "451", *["503"] * 31]
            # a client that does not listen mixes no mail, and its content is no commands
            assert deaf.say("DATA")[:9] == "451 4.3.0"
            blind.send(b"DATA\r\nSubject: x\r\n\r\nMAIL FROM:<x@a>\r\nRCPT TO:<x@b>\r\nDATA\r\n")
            assert [reply[:9] for reply in blind.rest()] == ["451 4.3.0", "503 5.5.1"]
        assert first.reply()[:3] == "250"
        early.send(b".\r\n")
        assert early.reply()[:3] == "250"
        until(lambda: begun(piped)[:3] == "354")
        deaf.send(b"MAIL FROM:<two@a>\r\nRCPT TO:<two@b>\r\nDATA\r\n")
        assert [deaf.reply()[:3] for _ in range(3)] == ["250", "250", "354"]
        number = deaf.say(".").split()[2]
        with psycopg.connect(database) as db:
            statement = "SELECT sender, recipient FROM queue WHERE message_id = %s"
            assert db.execute(statement, [number]).fetchall() == [("two@a", "two@b")]


@pytest.mark.slow
def test_a_database_that_is_away(private_server: PrivateServer) -> None:
    with serving(private_server.uri, relay={"networks": ["127.0.0.1"]}) as port:

        def tried() -> tuple[str, str]:
            """The command that is answered last, with the code of its reply."""
            with Client(port) as client:
                assert client.reply()[:3] == "220"
                reply = begun(client)
                if reply[:3] != "354":
                    return "MAIL", reply[:3]
                return "content", client.say(".")[:3]

        assert tried() == ("content", "250")
        private_server.crash()
        assert tried()[1] == "451"
        until(lambda: tried() == ("MAIL", "451"), describe="refusals before content")
        private_server.start()
        until(lambda: tried() == ("content", "250"), describe="mail is taken again")
