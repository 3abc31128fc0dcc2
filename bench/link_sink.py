"""A next hop in this process that notes when the link of each account arrived."""

import asyncio
import re
import threading
import time
from typing import Self, cast

from bench.helper import HelperError
from bench.ledger import Ledger
from bench.sink import Session
from pgmta.compose.token import KeyRing, Purpose

_LINK = re.compile(rb"/(activate|recover)\?token=([A-Za-z0-9_-]{86})\r\n")
_CODE = re.compile(rb"\r\ncode ([0-9]{5})\r\n")


class LinkLedger:
    """The arrived links that verify, by recipient, with the time by the monotonic clock.

    Mail is short ASCII, so it is not encoded.
    """

    def __init__(self, rings: dict[Purpose, KeyRing]) -> None:
        self._rings = rings
        self.connections = self.open = self.peak = 0
        self.arrived: dict[str, float] = {}
        self.wrong: list[str] = []

    def store(self, sender: bytes, recipients: list[bytes], data: bytes) -> None:
        """Take in one message."""
        now = time.monotonic()
        link, code = _LINK.search(data), _CODE.search(data)
        ring = self._rings[Purpose(link[1].decode())] if link else None
        recovers = ring and ring is self._rings[Purpose.RECOVER]
        if not (
            link
            and ring
            and ring.verify(link[2].decode(), code[1].decode() if code and recovers else "")
        ):
            self.wrong.append(f"a mail without a good link to {recipients}")
            return
        for address in recipients:
            if self.arrived.setdefault(address.decode(), now) is not now:
                self.wrong.append(f"a second mail to {address!r}")

    def refusal(self, address: bytes) -> bytes:
        """Refuse no recipient."""
        return b""

    def fault(self, kind: str, detail: str) -> None:
        """Note an error of the protocol."""
        self.wrong.append(f"{kind}: {detail}")


class LinkSink:
    """Serves in a thread. `port` is its port, and `ledger` has what arrived."""

    def __init__(self, rings: dict[Purpose, KeyRing]) -> None:
        self.ledger = LinkLedger(rings)
        self._loop = asyncio.new_event_loop()
        serve = self._loop.create_server(self._session, "127.0.0.1", 0, backlog=1024)
        self._server = self._loop.run_until_complete(serve)
        self.port = int(self._server.sockets[0].getsockname()[1])
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def _session(self) -> Session:
        return Session(cast(Ledger, self.ledger))

    def __enter__(self) -> Self:
        """Begin."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._server.close()

    def wait(self, address: str, seconds: float = 60.0) -> float:
        """Return when the link to this mailbox arrived. Raises HelperError if it does not."""
        end = time.monotonic() + seconds
        while (at := self.ledger.arrived.get(address)) is None:
            if time.monotonic() > end:
                raise HelperError(f"no link to {address} within {seconds:g} s")
            time.sleep(0.002)
        return at
