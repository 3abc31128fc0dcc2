"""A TCP proxy that hands octets on after a fixed time, in both directions.

It replaces the delay of a network, for machines whose kernel has no netem. `asyncio` rounds times
up to milliseconds, so this is a loop around select().
"""

import contextlib
import json
import os
import select
import socket
import sys
import time
from collections import deque
from dataclasses import dataclass, field

from bench.helper import be_another_host, say

_READ_OCTETS = 1 << 18


@dataclass(eq=False)
class Direction:
    """Octets from one socket to another; `ended` once the last ones are due."""

    source: socket.socket
    target: socket.socket
    due: bytearray = field(default_factory=bytearray)
    ended: bool = False

    def send(self) -> None:
        """Send the octets that are due, as far as the socket takes them. Raises OSError."""
        if self.due:
            with contextlib.suppress(BlockingIOError):
                del self.due[: self.target.send(self.due)]
        if self.ended and not self.due:
            self.target.shutdown(socket.SHUT_WR)


class DelayLine:
    """All connections of the proxy; `delay` is in seconds."""

    def __init__(self, listeners: list[socket.socket], upstream: list[str], delay: float) -> None:
        self._listeners = listeners
        self._upstream = upstream
        self._delay = delay
        self._reading: dict[socket.socket, Direction] = {}
        self._writing: set[Direction] = set()
        self._waiting: deque[tuple[float, Direction, bytes]] = deque()

    def run(self) -> None:
        """Work until standard input ends."""
        while True:
            left = max(0.0, self._waiting[0][0] - time.monotonic()) if self._waiting else None
            sources: list[socket.socket | int] = [0, *self._listeners, *self._reading]
            readable, writable, _ = select.select(
                sources,
                [one.target for one in self._writing if one.due],
                [],
                left,
            )
            if 0 in readable and not os.read(0, 4096):
                return
            for each in readable:
                if isinstance(each, int):
                    continue
                if each in self._listeners:
                    self._accept(each)
                else:
                    self._read(self._reading[each])
            ready = {one for one in self._writing if one.target in writable}
            for one in self._release() | ready:
                self._write(one)

    def _accept(self, listener: socket.socket) -> None:
        near, _ = listener.accept()
        host, port = self._upstream
        if host.startswith("/"):
            far = socket.socket(socket.AF_UNIX)
            far.connect(f"{host}/.s.PGSQL.{port}")
        else:
            far = socket.create_connection((host, int(port)))
        for one in (near, far):
            if one.family != socket.AF_UNIX:
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            one.setblocking(False)
        self._reading[near] = Direction(near, far)
        self._reading[far] = Direction(far, near)

    def _read(self, one: Direction) -> None:
        try:
            octets = one.source.recv(_READ_OCTETS)
        except BlockingIOError:
            return
        except OSError:
            octets = b""
        self._waiting.append((time.monotonic() + self._delay, one, octets))
        if not octets:
            del self._reading[one.source]

    def _release(self) -> set[Direction]:
        """Return the directions whose octets have become due."""
        now, found = time.monotonic(), set[Direction]()
        while self._waiting and self._waiting[0][0] <= now:
            _, one, octets = self._waiting.popleft()
            one.due += octets
            one.ended |= not octets
            found.add(one)
        return found

    def _write(self, one: Direction) -> None:
        try:
            one.send()
        except OSError:  # the other end of the connection has gone
            one.due.clear()
            one.ended = True
        self._writing.discard(one)
        if one.due:
            self._writing.add(one)


def listeners(addresses: list[str], namespace: str) -> list[socket.socket]:
    """Return a socket per address, in the network namespace if one is named (Linux, root)."""
    own = os.open("/proc/self/ns/net", os.O_RDONLY)
    if namespace:
        other = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
        os.setns(other, os.CLONE_NEWNET)
    found = [socket.create_server((address, 0), backlog=100) for address in addresses]
    if namespace:
        os.setns(own, os.CLONE_NEWNET)
    return found


def main() -> None:
    """Serve; argument: JSON with addresses, namespace, upstream and delay."""
    config = json.loads(sys.argv[1])
    be_another_host()
    found = listeners(config["addresses"], config["namespace"])
    say(**{"is": "ready"}, ports=[each.getsockname()[1] for each in found])
    DelayLine(found, config["upstream"], config["delay"]).run()


if __name__ == "__main__":
    main()
