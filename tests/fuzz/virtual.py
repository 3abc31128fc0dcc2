"""An event loop whose time passes at once, and the server's end of a connection in memory."""

from __future__ import annotations

import asyncio
import math
import selectors
import socket
from collections import deque
from typing import Any, cast

_HIGH = 1 << 16  # octets that wait for the client until the session has to wait
_SOCKETS = socket.socketpair()  # smtpd asks the kernel how much a socket has to read


class _Selector(selectors.DefaultSelector):
    """Waits for nothing: the clock goes on instead."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        # at least the next number: else the clock could stand still before a timer, after weeks
        self.now = math.nextafter(self.now + (timeout or 0.0), math.inf)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Sleeps by its own clock only."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        """Seconds by the clock of the loop."""
        return self._virtual.now


class Wire(asyncio.Transport):
    """A connection in memory, as the server has it; a client puts octets in and takes them out.

    It behaves as a transport of uvloop does.
    """

    _start_tls_compatible = True  # asyncio asks for it

    def __init__(self, loop: asyncio.AbstractEventLoop, peer: tuple[str, int]) -> None:
        super().__init__({"peername": peer, "socket": _SOCKETS[0], "sockname": ("127.0.0.1", 25)})
        self._loop = loop
        self._protocol: Any = None
        self._reading = True
        self._inbox: deque[bytes] = deque()  # an empty one is the end of the client's side
        self._waiting = bytearray()  # for a client that does not read
        self._told = False  # it has called pause_writing
        self._no_more = False
        self._closing = False
        self.client_reads = True
        self.out = bytearray()
        """All that the client has read and not yet taken."""
        self.lost = False

    # -- the client --

    def receive(self, data: bytes) -> None:
        """Take octets from the client; b"" is the end of its side."""
        self._inbox.append(data)
        self._pump()

    def read_on(self) -> None:
        """Have the client read."""
        self.client_reads = True
        self.out += self._waiting
        self._waiting.clear()
        if self._told:
            self._told = False
            self._protocol.resume_writing()
        if self._closing:
            self._lose(None)

    def drop(self) -> None:
        """Break the connection, as the client's reset does."""
        self._waiting.clear()
        self._lose(ConnectionResetError("reset"))

    def _pump(self) -> None:
        while self._inbox and self._reading and not (self._closing or self.lost):
            data = self._inbox.popleft()
            protocol = self._protocol
            if not data:
                if not protocol.eof_received():
                    self.close()
            elif isinstance(protocol, asyncio.BufferedProtocol):
                while data:
                    room = cast(memoryview, protocol.get_buffer(len(data)))
                    count = min(len(room), len(data))
                    room[:count] = data[:count]
                    protocol.buffer_updated(count)
                    data = data[count:]
            else:
                protocol.data_received(data)

    def _lose(self, error: Exception | None) -> None:
        if not self.lost:
            self.lost = self._closing = True
            self._loop.call_soon(self._protocol.connection_lost, error)

    # -- the protocol --

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return cast(asyncio.BaseProtocol, self._protocol)

    def is_reading(self) -> bool:
        return self._reading

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._loop.call_soon(self._pump)

    def write(self, data: Any) -> None:
        assert not self._no_more, "write after write_eof"
        if self._closing:
            return
        if self.client_reads:
            self.out += data
            return
        self._waiting += data
        if len(self._waiting) > _HIGH and not self._told:
            self._told = True
            self._protocol.pause_writing()

    def writelines(self, parts: Any) -> None:
        self.write(b"".join(parts))

    def get_write_buffer_size(self) -> int:
        return len(self._waiting)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return _HIGH // 4, _HIGH

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self._no_more = True

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        self._closing = True
        if not self._waiting:
            self._lose(None)

    def abort(self) -> None:
        self._waiting.clear()
        # without an error asyncio takes a handshake under way for a success; uvloop does not
        in_tls = isinstance(self._protocol, asyncio.BufferedProtocol)
        self._lose(ConnectionAbortedError() if in_tls else None)

    def _force_close(self, error: Exception | None) -> None:  # asyncio's TLS calls it
        self.abort()
