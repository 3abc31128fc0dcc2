"""pgmta.SyncClient: threads, forks and SIGTERM."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from pgmta import Mail, NotBegun, SubmissionError, SyncClient
from tests.pgmta.client.test_client import CALLS, mail, subjects
from tests.support.daemons import ROOT
from tests.support.rows import column
from tests.support.waiting import PATIENCE, until


def test_threads_share_commits(database: str, db: psycopg.Connection) -> None:
    with SyncClient(database, connections=1) as client, ThreadPoolExecutor(20) as threads:
        ids = list(threads.map(lambda n: client.send(mail(n)), range(400)))
        assert subjects(db) == sorted((number, f"Mail {n}") for n, number in enumerate(ids))
        assert column(db, CALLS)[0] <= 200
        with pytest.raises(SubmissionError, match="^to: "):
            client.send(mail(to=["bad"]))
        with pytest.raises(TypeError, match="^subject: "):
            client.send(mail(subject=7))
        readers: set[int] = set()

        def mails() -> Iterator[Mail]:
            for n in range(2_000):
                readers.add(threading.get_ident())
                yield mail(n, to=["bad"] if n == 1_234 else ["r@b.example"])

        found = client.send_many(mails())
        assert readers == {threading.get_ident()}  # as the program's connections may need it
        assert [n for n, each in enumerate(found) if each.error] == [1_234]
        assert {
            number: len(rows) for number, rows in client.status(ids[:3]).items()
        } == dict.fromkeys(ids[:3], 1)
        [(number, [row])] = client.wait(ids[:1], timeout=0).items()
        assert (number, row.recipient, row.state) == (ids[0], "r@b.example", "queued")
        assert client.cancel(ids[0]) == 1
        assert client.wait(ids[:1])[ids[0]][0].state == "cancelled"
        with pytest.raises(SubmissionError, match="^id: there is no message"):
            client.cancel(10**9)
    for call in (lambda: client.send(mail()), lambda: client.status([1])):
        with pytest.raises(NotBegun):
            call()
    assert [type(each.error) for each in client.send_many([mail()])] == [NotBegun]
    client.close()


TERMINATED = """
import json, signal, sys
from pgmta import Mail, SyncClient

def mails():
    for n in range(int(sys.argv[2])):
        yield Mail(sender="s@a.example", to=["r@b.example"], subject=str(n), body="x")

client = SyncClient(sys.argv[1])
signal.signal(signal.SIGTERM, lambda *_: client.close())
found = client.send_many(mails())
print(json.dumps([[each.id, type(each.error).__name__] for each in found]))
"""

TERMINATED_LOOP = """
import asyncio, json, signal, sys
from pgmta import Client, Mail

def mails():
    for n in range(int(sys.argv[2])):
        yield Mail(sender="s@a.example", to=["r@b.example"], subject=str(n), body="x")

async def main():
    async with Client(sys.argv[1]) as client:
        stop = lambda: tasks.append(asyncio.create_task(client.close()))
        tasks = []
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
        found = await client.send_many(mails())
    print(json.dumps([[each.id, type(each.error).__name__] for each in found]))

asyncio.run(main())
"""


def program(code: str, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error::ResourceWarning", "-c", code, *words],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("code", [TERMINATED, TERMINATED_LOOP], ids=["threads", "asyncio"])
def test_a_program_that_is_terminated_knows_what_is_sent(
    database: str, db: psycopg.Connection, code: str
) -> None:
    number = 30_000
    child = program(code, database, str(number))
    until(lambda: column(db, CALLS) > [1], describe="commits")
    child.send_signal(signal.SIGTERM)
    out, err = child.communicate(timeout=PATIENCE)
    assert (child.returncode, err) == (0, "")
    found = json.loads(out)
    assert len(found) == number
    sent = [(each[0], str(n)) for n, each in enumerate(found) if each[0]]
    assert subjects(db) == sorted(sent)
    assert 500 <= len(sent) < number
    assert {each[1] for each in found if not each[0]} == {"NotBegun"}


FORKED = """
import os, sys, threading
from pgmta import Mail, SyncClient

def mail(subject):
    return Mail(sender="s@a.example", to=["r@b.example"], subject=subject, body="x")

client = SyncClient(sys.argv[1])
ids = [client.send(mail("before"))]
for child in range(2):
    if not os.fork():
        print(client.send(mail(f"child {child}")), client.status([1]).keys(), flush=True)
        client.close()
        os._exit(0)
for _ in range(2):
    assert os.wait()[1] == 0
ids.append(client.send(mail("after")))  # its connections are as they were
assert len(client.status(ids)) == 2
client.close()
"""


def test_a_client_goes_through_a_fork(database: str, db: psycopg.Connection) -> None:
    child = program(FORKED, database)
    out, err = child.communicate(timeout=PATIENCE)
    assert child.returncode == 0, err
    assert len(out.splitlines()) == 2
    names = sorted(name for _, name in subjects(db))
    assert names == ["after", "before", "child 0", "child 1"]
    (calls,) = column(db, CALLS)
    assert calls == 4
