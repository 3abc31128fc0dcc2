"""A program that sends mail at a steady rate, each with a key, until SIGTERM. Run by the scenario.

It begins at the end of its journal. It sends some of the last mail again, as a program without a
journal does.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path

from pgmta import Client, Mail, NotBegun

AGAIN = 20  # mails of which the answer is known, and which are sent again


@dataclass
class Journal:
    """The mail that a producer has begun, and the answers that it got; a line each."""

    path: Path
    begun: set[int] = field(default_factory=set)
    ids: dict[int, set[str]] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    not_begun: int = 0

    def read(self) -> Journal:
        """Read the file, the last line of which may be half a line."""
        text = self.path.read_text() if self.path.exists() else ""
        for line in text.rpartition("\n")[0].splitlines():
            word, number, said = line.split(" ", 2)
            if word == "begun":
                self.begun.add(int(number))
            elif word == "stored":
                self.ids.setdefault(int(number), set()).add(said)
            elif word == "refused":
                self.not_begun += 1
            else:
                self.failed.append(line)
        return self


class SteadyProducer:
    """Sends every third number from `share` on, `rate` per second; with 0 only the open ones."""

    def __init__(self, uri: str, share: int, rate: float, journal: Path) -> None:
        self._client = Client(uri)
        self._share, self._rate = share, rate
        known = Journal(journal).read()
        stored = sorted(known.ids)
        self._first = [*sorted(known.begun - known.ids.keys()), *stored[-AGAIN:]]
        self._next = max(known.begun, default=share - 3) + 3
        self._journal = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._tasks: set[asyncio.Task[None]] = set()
        self._stop = asyncio.Event()

    async def run(self) -> None:
        """Send until SIGTERM, and end the calls that were begun."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._stop.set)
        for number in self._first:
            self._begin(number)
        if self._rate:
            self._tick(loop, loop.time())
            await self._stop.wait()
            await self._client.close()
        while self._tasks:
            await asyncio.wait(set(self._tasks))
        await self._client.close()

    def _tick(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        if self._stop.is_set():
            return
        self._begin(self._next)
        self._next += 3
        loop.call_at(due + 1 / self._rate, self._tick, loop, due + 1 / self._rate)

    def _begin(self, number: int) -> None:
        self._note("begun", number)
        task = asyncio.create_task(self._send(number))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send(self, number: int) -> None:
        mail = Mail(
            sender="shop@example.org", to=[f"n{number}@hop.example"], subject=f"Order {number}",
            body="Thank you.", key=f"order {number}",
        )  # fmt: skip
        try:
            self._note("stored", number, str(await self._client.send(mail)))
        except NotBegun:
            self._note("refused", number)
        except Exception as error:
            self._note("failed", number, repr(error))

    def _note(self, word: str, number: int, said: str = "") -> None:
        os.write(self._journal, f"{word} {number} {said}\n".encode())


async def main(uri: str, share: str, rate: str, journal: str) -> None:
    await SteadyProducer(uri, int(share), float(rate), Path(journal)).run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
