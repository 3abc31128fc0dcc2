"""Crowds of clients of smtpd: idle ones, slow ones, and such that guess passwords."""

import base64
import contextlib
import json
import os
import selectors
import socket
import ssl
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from bench.helper import say
from bench.source import client_context, percentile

CROWDS = {
    "crowd-idle": "40 times the clients, silent after EHLO",
    "crowd-tls": "40 times the clients, silent after STARTTLS and EHLO",
    "crowd-slow": "4 times the clients, one octet per second in each phase",
    "crowd": "these three at once",
    "crowd-large": "twice the clients, each with a message of 50 MB that does not end",
    "passwords": "as many addresses, each tries wrong passwords in 20 sessions; a user in between",
}
USERS = [f"user{number}@bench.test" for number in range(20)]
PASSWORD = "the right one"
HOME = "127.0.2.2"  # the network of the user who is attacked, and who logs in from there
SETTINGS: dict[str, Any] = {"limits": {"connections": 6000, "messages_per_session": 10**6}}
LISTENER = {"auth": "offered", "auth_without_tls": True}
_SESSIONS = 20  # of an address that tries passwords
_EVERY = 0.5  # seconds between logins of the user
_LARGE = 50 << 20
_HELLO = b"EHLO crowd.test\r\n"
_MAIL = b"MAIL FROM:<x@crowd.test>\r\nRCPT TO:<attacked@d0.bench.test>\r\n"
_FIELDS = (b"X-Filler: " + b"x" * 66 + b"\r\n") * 2000
_SLOW: tuple[tuple[str, bytes, bytes], ...] = (
    ("EHLO", b"", b"EHLO " + b"x" * 200),
    ("MAIL", _HELLO, b"MAIL FROM:<x@crowd.test>" + b" " * 500),
    ("RCPT", _HELLO + _MAIL, b"RCPT TO:<attacked@d0.bench.test>" + b" " * 500),
    ("header", _HELLO + _MAIL + b"DATA\r\n", b"Subject: " + b"x" * 900),
    ("body", _HELLO + _MAIL + b"DATA\r\n\r\n" + b"x" * 800 + b"\r\n", b"x\r\n" * 400),
    ("BDAT", _HELLO + _MAIL + b"BDAT 100000\r\n", b"x\r\n" * 400),
    ("AUTH", _HELLO + b"AUTH PLAIN\r\n", b"QUJD" * 400),
    ("TLS hello", _HELLO + b"STARTTLS\r\n",
     b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"x" * 99),
)  # fmt: skip
"""Phases: its name, what leads to it, and what comes slowly."""


def _source(number: int) -> str:
    """Return an address; 20 in each network."""
    return f"127.0.{10 + number // 20 % 200}.{1 + number % 20}"


def _connect(port: int, source: str) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), 60.0, (source, 0))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _reply(connection: socket.socket) -> bytes:
    """Return the last line of a reply."""
    found = b""
    while not (found.endswith(b"\n") and found.splitlines()[-1][3:4] != b"-"):
        more = connection.recv(4096)
        if not more:
            raise OSError(f"closed after {found[-100:]!r}")
        found += more
    return found.splitlines()[-1]


class Crowd:
    """The clients of one attack, between "go" and "stop" on standard input."""

    def __init__(self, attack: str, clients: int, port: int) -> None:
        self.attack, self.count, self.port = attack, clients, port
        self.held: list[socket.socket] = []
        self.figures: Counter[str] = Counter()
        self.over = threading.Event()
        self._numbers = iter(range(1 << 30))
        self._jobs: list[threading.Thread] = []
        self._logins: list[float] = []
        self._tries = 0
        self._lock = threading.Lock()

    def run(self) -> None:
        """Obey the commands until standard input ends."""
        if self.attack == "passwords":
            self._log_in()  # from now on smtpd knows the network of the user
        say(**{"is": "ready"})
        while word := os.read(0, 64).strip():
            if word == b"go":
                self._build()
                say(**{"is": "built"})
                continue
            self.over.set()
            for job in self._jobs:
                job.join(10)
            self.figures["held"] = sum(_alive(one) for one in self.held)
            for one in self.held:
                one.close()
            if self._logins:
                self.figures["login ms p99"] = round(percentile(sorted(self._logins), 0.99) * 1000)
            say(**{"is": "stopped"}, **self.figures)

    def _job(self, work: Callable[..., None], *arguments: Any) -> None:
        job = threading.Thread(target=work, args=arguments, daemon=True)
        self._jobs.append(job)
        job.start()

    def _build(self) -> None:
        if self.attack in ("crowd", "crowd-idle"):
            self._open(40, self._idle)
        if self.attack in ("crowd", "crowd-tls"):
            self._context = client_context()
            self._open(40, self._secure)
        if self.attack in ("crowd", "crowd-slow"):
            drips = [self._drip(number) for number in range(4 * self.count)]
            self._job(self._slowly, drips)
        if self.attack == "crowd-large":
            self._job(self._pour, [self._begin_large() for _ in range(2 * self.count)])
        if self.attack == "passwords":
            self._job(self._visit)
            for number in range(self.count):
                self._job(self._guess_all, f"127.0.{100 + number}.1")

    def _open(self, factor: int, opened: Callable[[socket.socket], socket.socket]) -> None:
        for _ in range(factor * self.count):
            one = _connect(self.port, _source(next(self._numbers)))
            _reply(one)
            self.held.append(opened(one))

    def _idle(self, one: socket.socket) -> socket.socket:
        one.sendall(_HELLO)
        _reply(one)
        return one

    def _secure(self, one: socket.socket) -> socket.socket:
        for command in (_HELLO, b"STARTTLS\r\n"):
            one.sendall(command)
            _reply(one)
        secured: ssl.SSLSocket = self._context.wrap_socket(one, server_hostname="bench.test")
        return self._idle(secured)

    # -- slow ones --

    def _drip(self, number: int) -> Iterator[None]:
        """Yield before each octet of a slow client."""
        _, lead, slow = _SLOW[number % len(_SLOW)]
        one = _connect(self.port, _source(next(self._numbers)))
        _reply(one)
        for line in lead.splitlines(keepends=True):
            one.sendall(line)
            if line[:4].isalpha() and line[:4].isupper() and line[:4] != b"BDAT":
                _reply(one)
        self.held.append(one)

        def octets() -> Iterator[None]:
            for octet in slow:
                yield
                with contextlib.suppress(OSError):
                    one.send(bytes((octet,)))
                self.figures["octets"] += 1

        return octets()

    def _slowly(self, drips: list[Iterator[None]]) -> None:
        while not self.over.wait(1.0):
            for drip in drips:
                next(drip, None)

    # -- large ones --

    def _begin_large(self) -> socket.socket:
        one = _connect(self.port, _source(next(self._numbers)))
        _reply(one)
        for line in (_HELLO + _MAIL + b"DATA\r\n").splitlines(keepends=True):
            one.sendall(line)
            _reply(one)
        one.setblocking(False)
        self.held.append(one)
        return one

    def _pour(self, clients: list[socket.socket]) -> None:
        selector, left = selectors.DefaultSelector(), dict.fromkeys(clients, _LARGE - len(_FIELDS))
        for one in clients:
            selector.register(one, selectors.EVENT_WRITE)
        while left and not self.over.is_set():
            for key, _ in selector.select(0.2):
                to: Any = key.fileobj
                try:
                    sent = to.send(_FIELDS[: max(78, min(len(_FIELDS), left[to]))])
                except BlockingIOError:
                    continue
                except OSError:
                    sent = left[to]
                    self.figures["dropped"] += 1
                self.figures["MB"] += sent / (1 << 20)
                left[to] -= sent
                if left[to] <= 0:
                    selector.unregister(to)
                    del left[to]

    # -- passwords --

    def _log_in(self) -> None:
        began = time.monotonic()
        try:
            with _connect(self.port, HOME) as one:
                _reply(one)
                one.sendall(_HELLO)
                _reply(one)
                one.sendall(b"AUTH PLAIN " + _plain(USERS[0], PASSWORD) + b"\r\n")
                good = _reply(one)[:3] == b"235"
                one.sendall(b"QUIT\r\n")
        except OSError:
            good = False
        self._logins.append(time.monotonic() - began)
        self.figures["logins" if good else "logins refused"] += 1

    def _visit(self) -> None:
        while not self.over.wait(_EVERY):
            self._log_in()

    def _guess_all(self, source: str) -> None:
        """Guess from one address in many sessions; one thread, because each is slow."""
        selector = selectors.DefaultSelector()
        sessions: dict[Any, bytes] = {}
        while not self.over.is_set():
            while len(sessions) < _SESSIONS:
                try:
                    one = _connect(self.port, source)
                except OSError:
                    self.figures["not connected"] += 1
                    break
                selector.register(one, selectors.EVENT_READ)
                sessions[one] = b""
            for key, _ in selector.select(0.2):
                one = key.fileobj  # type: ignore[assignment]
                try:
                    more = one.recv(4096)
                    self._guess(one, more)
                except OSError:
                    more = b""
                if not more:
                    selector.unregister(one)
                    one.close()
                    del sessions[one]
            if not sessions:
                self.over.wait(0.2)
        for one in sessions:
            one.close()

    def _guess(self, one: socket.socket, heard: bytes) -> None:
        """Answer what smtpd has said: with the next password, or with EHLO to its greeting."""
        last = (heard.splitlines() or [b""])[-1]
        code = last[:3]
        if code == b"220":
            one.sendall(_HELLO)
        elif last[3:4] == b" " and code in (b"250", b"535", b"454"):
            if code != b"250":
                self.figures[f"replies {code.decode()}"] += 1
            with self._lock:
                self._tries += 1
            number = self._tries
            self.figures["tries"] = number
            user = USERS[0 if number % 2 else number // 2 % len(USERS)]
            one.sendall(b"AUTH PLAIN " + _plain(user, f"wrong {number}") + b"\r\n")
        elif code == b"421":
            self.figures["replies 421"] += 1


def _plain(user: str, password: str) -> bytes:
    return base64.b64encode(f"\0{user}\0{password}".encode())


def _alive(one: socket.socket) -> bool:
    """Return whether smtpd still has the connection."""
    one.setblocking(False)
    try:
        return bool(one.recv(4096))
    except (BlockingIOError, ssl.SSLWantReadError):
        return True
    except OSError:
        return False


def main() -> None:
    """Attack from "go" to "stop"; argument: JSON with attack, clients and port."""
    config = json.loads(sys.argv[1])
    crowd = Crowd(config["attack"], config["clients"], config["port"])
    with contextlib.suppress(KeyboardInterrupt):
        crowd.run()


if __name__ == "__main__":
    main()
