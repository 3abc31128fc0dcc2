"""queued with a next hop that takes all mail at once; it notes each claim and each taken mail.

It is the command itself, with all its duties. Only the next hop at NULL_PORT needs no network; any
other has its connections. Each second a line of JSON goes to the file that BENCH_FILE names.
"""

import json
import os
import threading
import time
from collections import deque
from typing import Any

from bench.null_hop import NullChannel, NullTransport
from pgmta.store.queue.claim import Claim, Claims
from queued.daemon import queued
from queued.delivery.smtp.smtp_transport import SmtpTransport
from queued.delivery.transport.envelope import Envelope
from queued.delivery.transport.result import Result
from queued.delivery.transports import TRANSPORTS, TransportKind

FILE_VARIABLE = "BENCH_FILE"
"""The environment variable with the file."""
NULL_PORT = 25
"""The port of the next hop that takes all mail."""
RATED = "rated.example"
"""The sender's domain of mail that has a rate."""
_INTERVAL_S = 1.0

_claims = deque[tuple[float, int]]()  # seconds and rows of each
_plain = deque[float]()  # seconds from the transaction that put a row in until it is taken
_rated = deque[float]()  # times by the monotonic clock


class NotingChannel(NullChannel):
    """Takes every recipient."""

    async def send(self, envelope: Envelope) -> list[Result]:
        """Note how long the rows waited, or when they came if they have a rate."""
        results = await super().send(envelope)
        self.taken.clear()  # for half an hour of mail it would grow
        now = time.time()
        if envelope.sender.endswith(RATED):
            _rated.append(time.monotonic())
        else:
            _plain.extend(now - item.ts.timestamp() for item in envelope.items)
        return results


class NotingTransport(NullTransport):
    """Opens channels that need no network."""

    async def open(self, destination: Any, *rest: Any, **more: Any) -> Any:
        """Return a channel."""
        if str(destination).endswith(f":{NULL_PORT}"):
            return NotingChannel()
        return await SmtpTransport.open(self, destination, *rest, **more)


_CLAIM = Claims.claim


async def _claim(self: Claims, *sizes: Any, **more: Any) -> Claim:
    began = time.monotonic()
    claim = await _CLAIM(self, *sizes, **more)
    if not self._each:  # those of urgent mail find nothing
        _claims.append((time.monotonic() - began, len(claim.items)))
    return claim


def _taken[T](notes: deque[T]) -> list[T]:
    return [notes.popleft() for _ in range(len(notes))]


def _write(path: str) -> None:
    with open(path, "a", encoding="utf-8", buffering=1) as file:
        while True:
            time.sleep(_INTERVAL_S)
            notes = {"at": time.monotonic(), "claims": _taken(_claims), "plain": _taken(_plain)}
            print(json.dumps(notes | {"rated": _taken(_rated)}), file=file)


if __name__ == "__main__":
    Claims.claim = _claim  # type: ignore[method-assign]
    TRANSPORTS["smtp"] = TransportKind(NotingTransport)
    threading.Thread(target=_write, args=(os.environ[FILE_VARIABLE],), daemon=True).start()
    queued.main(prog_name="queued")
