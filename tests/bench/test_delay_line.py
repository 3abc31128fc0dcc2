"""The proxy that replaces the delay of a network: what it hands on, and when."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.helper import Helper

DELAY = 0.02
OCTETS = bytes(range(256)) * 20_000


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    """The port of a proxy to a server that answers with the octets it gets."""

    def echo(connection: socket.socket) -> None:
        with connection:
            while octets := connection.recv(1 << 16):
                connection.sendall(octets)

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=echo, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, daemon=True).start()
        upstream = ["127.0.0.1", str(server.getsockname()[1])]
        config = {
            "addresses": ["127.0.0.1"], "namespace": "", "upstream": upstream, "delay": DELAY,
        }  # fmt: skip
        proxy = Helper("delay_line", config, tmp_path / "log")
        try:
            yield int(proxy.wait("ready")["ports"][0])
        finally:
            proxy.close()
            assert (tmp_path / "log").read_text() == ""
            server.shutdown(socket.SHUT_RDWR)


def test_each_direction_has_its_delay_and_keeps_the_order(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), 60) as client:
        client.sendall(b"warm")
        assert client.recv(99) == b"warm"
        began = time.monotonic()
        client.sendall(b"x")
        assert client.recv(99) == b"x"
        assert time.monotonic() - began >= 2 * DELAY
        writer = threading.Thread(target=client.sendall, args=(OCTETS,))
        writer.start()
        came = bytearray()
        while len(came) < len(OCTETS):
            came += client.recv(1 << 16)
        writer.join()
        assert came == OCTETS


def test_the_end_of_one_direction_goes_on_too(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), 60) as client:
        client.sendall(b"last")
        client.shutdown(socket.SHUT_WR)
        assert client.recv(99) == b"last"
        assert client.recv(99) == b""
