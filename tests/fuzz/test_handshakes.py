"""Handshakes that begin and do not go on, and dialogues that end at any octet, on real sockets."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import time
from contextlib import ExitStack

import psycopg
import pytest

from tests.fuzz.conftest import PASSWORD, USER, Running
from tests.support.serving import Client
from tests.support.users import plain
from tests.support.waiting import PATIENCE, until

HALF_OPEN = 2000
HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"  # the beginning of a TLS hello


def anyone() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def deliver(client: Client, mark: str) -> None:
    """Send a mail over a connection that has TLS."""
    for command in ("EHLO c", f"AUTH PLAIN {plain(USER, PASSWORD)}", f"MAIL FROM:<{USER}>",
                    f"RCPT TO:<{mark}@example.org>", "DATA"):  # fmt: skip
        assert client.say(command)[0] in "23"
    client.send(b"Subject: x\r\n\r\nx\r\n.\r\n")
    assert client.reply()[:3] == "250"


def test_half_open_handshakes(running: Running) -> None:
    """Half of them before STARTTLS, half from the first octet; some with a part of a hello."""
    with ExitStack() as stack:
        clients = []
        for number in range(HALF_OPEN):
            port = running.ports["implicit" if number % 2 else "submission"]
            one = stack.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE))
            clients.append(one)
        for number, one in enumerate(clients):
            with contextlib.suppress(OSError):
                if number % 2 == 0:
                    one.sendall(b"EHLO c\r\n")
        for one in clients[::2]:
            found = b""
            while b"ENHANCED" not in found:
                found += one.recv(4096)
            one.sendall(b"STARTTLS\r\n")
        for one in clients[::2]:
            assert one.recv(4096)[:4] == b"220 "
        for number, one in enumerate(clients):
            one.sendall(HELLO[: number % len(HELLO)])
        until(lambda: running.connections == HALF_OPEN, describe="all connected")
        began = time.monotonic()
        with Client(running.ports["implicit"]) as client:
            client.over(anyone().wrap_socket(client.socket))
            assert client.reply()[:3] == "220"
            deliver(client, "beside")
        assert time.monotonic() - began < PATIENCE / 2
        for one in clients[: HALF_OPEN // 2]:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    running.idle()


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
def test_a_dialogue_may_end_at_any_octet(running: Running, reset: bool) -> None:
    """Before STARTTLS, and in TLS with AUTH; beside them one session goes on."""
    before = b"EHLO c\r\nSTARTTLS\r\n"
    after = "EHLO c\r\n" + "".join(
        f"{line}\r\n"
        for line in (f"AUTH PLAIN {plain(USER, PASSWORD)}", f"MAIL FROM:<{USER}>",
                     "RCPT TO:<cut@example.org>", "DATA", "Subject: x", "", "x", ".")
    )  # fmt: skip
    context, port = anyone(), running.ports["submission"]

    def end(one: socket.socket) -> None:
        if reset:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        one.close()

    def kept(db: psycopg.Connection) -> int:
        ((mails,),) = db.execute("SELECT count(*) FROM queue WHERE recipient ^@ 'cut@'").fetchall()
        return int(mails)

    with Client(running.ports["implicit"]) as beside, psycopg.connect(running.uri) as db:
        earlier = kept(db)
        beside.over(context.wrap_socket(beside.socket))
        beside.reply()
        for cut in range(len(before)):
            one = socket.create_connection(("127.0.0.1", port), PATIENCE)
            one.sendall(before[:cut])
            end(one)
        for cut in range(len(after) + 1):
            with Client(port).hello() as client:
                client.say("STARTTLS")
                secured = context.wrap_socket(client.socket)
                client.over(secured)
                client.send(after[:cut].encode())
                if cut == len(after):
                    codes = [client.reply()[:3] for _ in range(6)]
                    assert codes == ["250", "235", "250", "250", "354", "250"]
                end(secured)
        deliver(beside, "beside")
        beside.send(b"QUIT\r\n")
        beside.rest()
        assert kept(db) == earlier + 1
    running.idle()
