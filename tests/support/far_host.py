"""A host of its network: programs run there, and reach PostgreSQL over a link that can be cut."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import threading
from contextlib import suppress
from typing import Self

from psycopg.conninfo import conninfo_to_dict, make_conninfo

possible = os.geteuid() == 0 and shutil.which("ip") is not None
"""Whether this user may make network namespaces."""


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=20)


class FarHost:
    """A network namespace with a link to this one, where a proxy passes on to PostgreSQL."""

    def __init__(self, uri: str) -> None:
        # networks of tests that run at the same time differ
        network = f"10.197.{secrets.randbelow(256)}"
        place = 4 * secrets.randbelow(64)
        self._near, self._far = f"{network}.{place + 1}", f"{network}.{place + 2}"
        self._name = f"pgmta-{secrets.token_hex(3)}"
        self._link = f"p{secrets.token_hex(3)}"
        self._uri = uri
        self.before = ("ip", "netns", "exec", self._name)
        """The words before a command that runs there."""
        self._sockets: list[socket.socket] = []
        self._listeners: list[socket.socket] = []

    def __enter__(self) -> Self:
        _ip("netns", "add", self._name)
        _ip("link", "add", self._link, "type", "veth", "peer", "name", "net", "netns", self._name)
        _ip("address", "add", f"{self._near}/30", "dev", self._link)
        _ip("link", "set", self._link, "up")
        far = ("-n", self._name)
        _ip(*far, "address", "add", f"{self._far}/30", "dev", "net")
        for link in ("net", "lo"):
            _ip(*far, "link", "set", link, "up")
        given = conninfo_to_dict(self._uri)
        host, port = given.get("host") or "/var/run/postgresql", given.get("port") or 5432
        near, at = self.pass_on(str(host), int(port))
        self.uri = make_conninfo(self._uri, host=near, port=at, requirepeer="", sslmode="disable")
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._listeners:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for each in (*self._listeners, *self._sockets):
            each.close()
        _ip("netns", "delete", self._name)

    @property
    def address(self) -> str:
        return self._far

    def cut(self) -> None:
        """Lose all packets from now on, without a word to either end."""
        _ip("link", "set", self._link, "down")

    def mend(self) -> None:
        _ip("link", "set", self._link, "up")

    def pass_on(self, host: str, port: int) -> tuple[str, int]:
        """Return address and port there of a server of this host."""
        listener = socket.create_server((self._near, 0))
        self._listeners.append(listener)
        threading.Thread(target=self._accept, args=(listener, host, port), daemon=True).start()
        return self._near, int(listener.getsockname()[1])

    def _accept(self, listener: socket.socket, host: str, port: int) -> None:
        with suppress(OSError):
            while True:
                near, _ = listener.accept()
                if host.startswith("/"):
                    server = socket.socket(socket.AF_UNIX)
                    server.connect(f"{host}/.s.PGSQL.{port}")
                else:
                    server = socket.create_connection((host, port))
                self._sockets += near, server
                for pair in ((near, server), (server, near)):
                    threading.Thread(target=_pass_on, args=pair, daemon=True).start()


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    for each in (source, sink):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
