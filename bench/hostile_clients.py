"""Hostile clients of smtpd: many connections of one thread, whose buffers are made once."""

import contextlib
import json
import os
import selectors
import socket
import sys
import time
from collections import deque
from dataclasses import dataclass

from bench.helper import say
from bench.source import client_context

CHUNK_OCTETS = 1 << 18  # of a prebuilt buffer, and of one read
EHLO = b"EHLO attacker.test\r\n"
MAIL = EHLO + b"MAIL FROM:<x@attacker.test>\r\n"
DATA = MAIL + b"RCPT TO:<attacked@d0.bench.test>\r\nDATA\r\n"
FIELD = b"X-Filler: " + b"x" * 66 + b"\r\n"


def _full(text: bytes) -> bytes:
    return text * (CHUNK_OCTETS // len(text))


@dataclass(frozen=True)
class Attack:
    """The script of every client: `hello`, wait for `until`, `lead` once, then `body` for ever.

    With a `step`, one tick per `interval` seconds sends this many octets of the body. A
    dropped client connects again after `again` seconds. `factor` multiplies the number
    of clients; `alone` gives all of them the same address, and `spread` puts 20
    into each network.
    """

    about: str
    hello: bytes = b""
    until: bytes = b""
    lead: bytes = b""
    body: bytes = b""
    step: int = 0
    interval: float = 0.0
    reads: bool = True
    again: float = 0.05
    factor: int = 1
    alone: bool = False
    spread: bool = False
    tls: bool = False


_PIPELINED_COMMANDS = _full(b"NOOP\r\nRSET\r\nEHLO attacker.test\r\nVRFY user\r\n")
_JUNK_COMMANDS = _full(b"GET / HTTP/1.1\r\nMAIL TO:<\r\nRCPT\r\n\0\xff\r\nHELO\r\nDATA x\r\n")
ATTACKS = {
    "flood": Attack("pipelined NOOP, RSET, EHLO, VRFY without a pause", body=_PIPELINED_COMMANDS),
    "unread": Attack("the same, replies are never read", body=_PIPELINED_COMMANDS, reads=False),
    "junk": Attack(
        "unknown commands and bad syntax, again at once when dropped",
        lead=_JUNK_COMMANDS[:2000],
        body=_JUNK_COMMANDS,
        step=2000,
        interval=0.01,
        again=0.0,
    ),
    "rcpt": Attack(
        "pipelined RCPT for recipients that are refused",
        hello=MAIL,
        until=b"250 2.1.0",
        body=_full(b"RCPT TO:<user@elsewhere.test>\r\n"),
    ),
    "half": Attack(
        "DATA and 500 KB, then silence, 18 times the clients",
        hello=DATA,
        until=b"354",
        lead=b"Subject: half\r\n\r\n" + FIELD * 6400,
        factor=18,
    ),
    "endless": Attack(
        "DATA without an end",
        hello=DATA,
        until=b"354",
        lead=b"Subject: endless\r\n\r\n",
        body=_full(FIELD),
    ),
    "drip": Attack(
        "one octet of the header every half second",
        hello=DATA,
        until=b"354",
        body=FIELD,
        step=1,
        interval=0.5,
    ),
    "crowd-idle": Attack(
        "40 times the clients, silent after EHLO", hello=EHLO, factor=40, spread=True
    ),
    "crowd-tls": Attack(
        "40 times the clients, silent after STARTTLS and EHLO", factor=40, spread=True, tls=True
    ),
    "connects": Attack(
        "22 times the clients from one address, all silent", factor=22, alone=True, again=0.2
    ),
}


class Client:
    """One place among the clients, and its connection if it has one."""

    __slots__ = ("at", "number", "out", "sent", "socket", "stage", "tail")

    def __init__(self, number: int) -> None:
        self.number = number
        self.socket: socket.socket | None = None
        self.stage = 0  # 0: hello; 1: waits for `until`; 2: sends the lead; 3: sends the body
        self.out = memoryview(b"")
        self.at = 0
        self.sent = 0  # octets of the body that were sent in small steps
        self.tail = b""


class Crowd:
    """All clients of one attack, between "go" and "stop" on standard input."""

    def __init__(self, attack: Attack, clients: int, port: int) -> None:
        self.attack, self.port = attack, port
        self.clients = [Client(number) for number in range(clients * attack.factor)]
        self.figures = {"connections": 0, "failed": 0, "dropped": 0, "sent": 0, "read": 0}
        self._selector = selectors.DefaultSelector()
        self._again: deque[tuple[float, Client]] = deque()
        self._into = bytearray(CHUNK_OCTETS)

    def run(self) -> None:
        """Obey the commands until standard input ends."""
        self._selector.register(0, selectors.EVENT_READ)
        say(**{"is": "ready"})
        interval = self.attack.interval
        tick = time.monotonic() + interval
        while True:
            now = time.monotonic()
            while self._again and self._again[0][0] <= now:
                self._open(self._again.popleft()[1])
            if interval and now >= tick:
                tick = max(tick + interval, now)
                for client in self.clients:
                    if client.stage == 3 and client.socket:
                        self._small(client)
            wait = 0.2 if not interval else max(0.0, tick - now)
            if self._again:
                wait = min(wait, max(0.0, self._again[0][0] - now))
            for key, events in self._selector.select(wait):
                if key.fd == 0:
                    word = os.read(0, 64).strip()
                    if not word:
                        return
                    self._obey(word)
                elif key.data.socket is key.fileobj:
                    self._ready(key.data, events)

    def _obey(self, word: bytes) -> None:
        if word == b"go":
            if self.attack.tls:
                self._secure()
            else:
                self._again.extend((0.0, client) for client in self.clients)
            say(**{"is": "built"})
            return
        held = sum(client.socket is not None for client in self.clients)
        for client in self.clients:
            self._close(client)
        self._again.clear()
        say(**{"is": "stopped"}, held=held, **self.figures)

    def _secure(self) -> None:
        """Open all connections, one after another; they stay silent."""
        context = client_context()
        for client in self.clients:
            plain = socket.create_connection(
                ("127.0.0.1", self.port), 60.0, (self._address(client), 0)
            )
            plain.recv(1000)
            for command in (EHLO, b"STARTTLS\r\n"):
                plain.sendall(command)
                plain.recv(4096)
            client.socket = context.wrap_socket(plain)
            client.socket.sendall(EHLO)
            client.socket.recv(4096)
            self._selector.register(client.socket, selectors.EVENT_READ, client)
            self.figures["connections"] += 1

    def _address(self, client: Client) -> str:
        if self.attack.spread:
            return f"127.0.{10 + client.number // 20 % 200}.{1 + client.number % 20}"
        return f"127.0.1.{1 if self.attack.alone else 1 + client.number % 250}"

    def _open(self, client: Client) -> None:
        new = socket.socket()
        new.setblocking(False)
        new.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            new.bind((self._address(client), 0))
            new.connect_ex(("127.0.0.1", self.port))
        except OSError:
            new.close()
            self.figures["failed"] += 1
            self._again.append((time.monotonic() + self.attack.again, client))
            return
        client.socket = new
        client.stage = client.at = client.sent = 0
        client.out, client.tail = memoryview(self.attack.hello), b""
        self._selector.register(new, selectors.EVENT_WRITE, client)
        self.figures["connections"] += 1

    def _close(self, client: Client) -> None:
        if client.socket:
            self._selector.unregister(client.socket)
            client.socket.close()
            client.socket = None

    def _drop(self, client: Client) -> None:
        self._close(client)
        self.figures["dropped"] += 1
        self._again.append((time.monotonic() + self.attack.again, client))

    def _listen(self, client: Client, events: int) -> None:
        if client.socket:
            self._selector.modify(client.socket, events, client)

    def _ready(self, client: Client, events: int) -> None:
        assert client.socket is not None
        try:
            if events & selectors.EVENT_READ:
                octets = client.socket.recv_into(self._into)
                if not octets:
                    self._drop(client)
                    return
                self.figures["read"] += octets
                if client.stage == 1:
                    self._heard(client, bytes(self._into[:octets]))
            if events & selectors.EVENT_WRITE:
                self._write(client)
        except BlockingIOError:
            return
        except OSError:
            self._drop(client)

    def _heard(self, client: Client, text: bytes) -> None:
        client.tail = client.tail[-1000:] + text
        if self.attack.until in client.tail:
            client.stage, client.out, client.at = 2, memoryview(self.attack.lead), 0
            self._listen(client, selectors.EVENT_READ | selectors.EVENT_WRITE)

    def _write(self, client: Client) -> None:
        assert client.socket is not None
        attack = self.attack
        if client.at < len(client.out):
            octets = client.socket.send(client.out[client.at : client.at + CHUNK_OCTETS])
            client.at += octets
            self.figures["sent"] += octets
            if client.at < len(client.out):
                return
        if client.stage == 0 and attack.until:
            client.stage = 1
            self._listen(client, selectors.EVENT_READ)
        elif client.stage < 2:
            client.stage, client.out, client.at = 2, memoryview(attack.lead), 0
        elif attack.body and not attack.step:
            client.stage, client.out, client.at = 3, memoryview(attack.body), 0
            both = selectors.EVENT_READ | selectors.EVENT_WRITE
            self._listen(client, both if attack.reads else selectors.EVENT_WRITE)
        else:
            client.stage = 3
            self._listen(client, selectors.EVENT_READ)

    def _small(self, client: Client) -> None:
        assert client.socket is not None
        attack = self.attack
        at = client.sent % len(attack.body)
        try:
            client.sent += client.socket.send(attack.body[at : at + attack.step])
        except BlockingIOError:
            return
        except OSError:
            self._drop(client)
            return


def main() -> None:
    """Attack from "go" to "stop"; argument: JSON with attack, clients and port."""
    config = json.loads(sys.argv[1])
    crowd = Crowd(ATTACKS[config["attack"]], config["clients"], config["port"])
    with contextlib.suppress(KeyboardInterrupt):
        crowd.run()


if __name__ == "__main__":
    main()
