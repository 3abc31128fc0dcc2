"""A next hop that takes some time for each message, and counts the copies of each."""

import asyncio
import json
import random
import sys
import time
from pathlib import Path

import uvloop

from bench.corpus import Corpus, Plan
from bench.helper import say
from bench.ledger import Ledger
from bench.sink import Session, serve


class Copies(Ledger):
    """Counts the copies of each message by its recipient: the hop has a copy after the dot."""

    def store(self, sender: bytes, recipients: list[bytes], data: bytes) -> None:
        """Count one message as it came over the wire."""
        self.transactions += 1
        for address in recipients:
            number = address[:-1].partition(b".")[2].partition(b"@")[0]
            if not number.isdigit() or int(number) >= self.messages:
                self.fault("wrong recipient", repr(address))
                continue
            self._count(int(number), address)
        self.last = time.monotonic()


class SlowSession(Session):
    """Replies to each final dot after a random time of at most `delay` seconds."""

    delay = 0.0

    def _message(self, answers: list[bytes]) -> bool:
        if not super()._message(answers):
            return False
        wait = random.uniform(0.0, self.delay)
        asyncio.get_running_loop().call_later(wait, self._reply, answers.pop())
        return True

    def _reply(self, answer: bytes) -> None:
        if not self.transport.is_closing():
            self._say(answer)


def main() -> None:
    """Serve until standard input ends; argument: JSON with plan, directory and delay."""
    config = json.loads(sys.argv[1])
    ledger = Copies(Corpus(Plan(**config["plan"])), 0)
    SlowSession.delay = config["delay"]
    loop = uvloop.new_event_loop()

    def command(word: str) -> None:
        if word == "report":
            (Path(config["directory"]) / "seen").write_bytes(ledger.seen)
            names = "received distinct transactions connections peak wrong samples"
            say(**{"is": "report"}, **{name: getattr(ledger, name) for name in names.split()})

    serve(loop, lambda: SlowSession(ledger), command)


if __name__ == "__main__":
    main()
