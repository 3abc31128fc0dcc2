"""A standby is promoted that lacks commits: mail may be lost, but no id is given twice.

`--promotions 20` promotes so often. Each time the standby receives nothing while mail goes on, so
that ids, rows, leases and outcomes are lost that were told to clients, programs and workers.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

import pgmta
from pgmta.postgres.primary import writable
from tests.pgmta.client.test_client import mail as letter
from tests.scenarios.conftest import installation
from tests.support.serving import Client, serving
from tests.support.standby import Pair, replicated
from tests.support.system import System
from tests.support.waiting import PATIENCE, until

pytestmark = pytest.mark.slow

SUBMIT = """
SELECT pgmta.submit('shop@a.example', ARRAY[%s], 'Subject: x\r\n\r\nx\r\n'::bytea, key => %s)
"""
NAMED = """
SELECT message_id, recipient FROM queue UNION SELECT message_id, recipient FROM attempts
UNION SELECT message_id, recipient FROM message_status
"""


class Promises:
    """Senders by SMTP, Client and SQL, which note the id that names each of their mails."""

    def __init__(self, pair: Pair, port: int) -> None:
        self._pair, self._port = pair, port
        self._over = threading.Event()
        self._numbers = itertools.count()
        self.told: list[tuple[int, str]] = []
        """Message id and recipient of each mail that was promised, in order."""
        ways = (self._smtp, self._smtp, self._client, self._sql)
        self._threads = [threading.Thread(target=way) for way in ways]
        for thread in self._threads:
            thread.start()

    def go_on(self, number: int) -> int:
        """Return how many are promised, when it is so many more."""
        wanted = len(self.told) + number
        until(lambda: len(self.told) >= wanted)
        return len(self.told)

    def end(self) -> None:
        """Return when each has its last answer."""
        self._over.set()
        for thread in self._threads:
            thread.join(PATIENCE)

    def _recipients(self, kind: str) -> Iterator[str]:
        while not self._over.is_set():
            yield f"{kind}{next(self._numbers)}@b.example"

    def _smtp(self) -> None:
        for recipient in self._recipients("smtp"):
            with Client(self._port) as client, suppress(AssertionError):  # 451 at MAIL
                assert client.reply()[:3] == "220"
                for line in ("EHLO c", "MAIL FROM:<a@b.example>", f"RCPT TO:<{recipient}>", "DATA"):
                    assert client.say(line)[0] in "23"
                client.send(b"x\r\n.\r\n")
                reply = client.reply()
                if reply[:3] == "250":
                    self.told.append((int(reply.split()[2]), recipient))

    def _client(self) -> None:
        with pgmta.SyncClient(self._pair.either) as client:
            for recipient in self._recipients("client"):
                with suppress(pgmta.StoreUnavailable):
                    self.told.append((client.send(letter(to=[recipient])), recipient))

    def _sql(self) -> None:
        """Over a connection of its own, which may be the first on the new primary."""
        for recipient in self._recipients("sql"):
            key = str(uuid4())
            while not self._over.is_set():
                with suppress(psycopg.Error), psycopg.connect(writable(self._pair.either)) as db:
                    ((number,),) = db.execute(SUBMIT, (recipient, key)).fetchall()
                    db.commit()
                    self.told.append((number, recipient))
                    break


@pytest.fixture
def pair(server: str) -> Iterator[Pair]:
    """A primary that does not wait for its standby."""
    with replicated(server, synchronous=False) as made:
        yield made


@pytest.fixture
def system(pair: Pair, tmp_path: Path) -> Iterator[System]:
    """An installation on both servers."""
    yield from installation(tmp_path, pair.either)


def test_no_number_is_told_twice(pair: Pair, system: System, pytestconfig: pytest.Config) -> None:
    """The workers have no poll: LISTEN and the row watch go on after each promotion."""
    hop = system.hop()
    system.queued(hop, process={"poll": "1h"})
    first = lost = 0
    with serving(pair.either, ingest={"wait": "1s"}) as port:
        promises = Promises(pair, port)
        try:
            for _ in range(pytestconfig.getoption("promotions")):
                pair.db.execute("SET search_path = pgmta, public")
                last = promises.go_on(60)
                assert mistakes(pair, promises.told, first, last) == []
                pair.freeze()
                promises.go_on(60)
                pair.fail_over()
                first = promises.go_on(4)
                pair.rejoin()
                pair.db.execute("SET search_path = pgmta, public")
                there = {number for number, _ in pair.db.execute(NAMED).fetchall()}
                lost += sum(number not in there for number, _ in promises.told[last:first])
        finally:
            promises.end()
        assert mistakes(pair, promises.told, first, len(promises.told)) == []
    print(len(promises.told), "told,", lost, "lost")
    assert lost
    system.wait_empty()
    contents = [(each.content or b"", each.recipients) for each in hop.kept]
    sent = {(content.partition(b" id ")[2].split()[0], to) for content, (to,) in contents}
    assert max(Counter(number for number, _ in sent).values()) == 1


def mistakes(pair: Pair, told: list[tuple[int, str]], first: int, last: int) -> list[object]:
    """Ids that were told twice, that name other mail, or that name none though nothing was lost.

    The last is true of what was told between the numbers `first` and `last`.
    """
    told = told.copy()
    recipients = dict(told)
    named = pair.db.execute(NAMED).fetchall()
    there = {number for number, _ in named}
    return [
        *(number for number, times in Counter(number for number, _ in told).items() if times > 1),
        *(each for each in named if recipients.get(each[0], each[1]) != each[1]),
        *(each for each in told[first:last] if each[0] not in there),
    ]
