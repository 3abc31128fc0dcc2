"""A program with pgmta.Client as a process: it sends the mail of a published benchmark.

It sends some mail first, so that its connections are there. Its command is go.
"""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
import uvloop

from bench.helper import listen, run, say
from pgmta import Client, Mail, SendResult

_ROUNDS, _TASKS = 5, 10
WARM_UP_MAILS = _ROUNDS * _TASKS
"""So many mails are sent before the measurement."""

_INSERT = "INSERT INTO public.orders (item) VALUES (%s)"


def mails(number: int) -> list[Mail]:
    """Return the mail of the published benchmark."""
    return [
        Mail(
            sender="obi-wan@jedi.example",
            to=["foo@example.com"],
            cc=["bar@example.com"],
            bcc=["bar@example.com"],
            subject="Hello there",
            body="General Kenobi!",
        )
        for _ in range(number)
    ]


def percentile(times: list[float], share: float) -> float:
    """Return the time, in milliseconds, below which this share of them is."""
    return sorted(times)[int(len(times) * share)] * 1000


class Producer:
    """The client, and the ids that it got."""

    def __init__(self, uri: str, number: int, tasks: int) -> None:
        self._uri, self._number, self._tasks = uri, number, tasks
        self._client = Client(uri)
        self.ids: set[int] = set()
        self.figures: dict[str, float] = {}

    async def warm_up(self) -> None:
        """Send some mail in rounds: a free connection takes a whole one, and then the next one."""
        for _ in range(_ROUNDS):
            self.ids.update(await asyncio.gather(*map(self._client.send, mails(_TASKS))))

    async def batch(self) -> float:
        """Send all by one call; return the seconds."""
        batch = mails(self._number)
        began = time.perf_counter()
        results: list[SendResult] = await self._client.send_many(batch)
        seconds = time.perf_counter() - began
        self.ids.update(each.id for each in results if each.id is not None)
        return seconds

    async def tasks(self) -> float:
        """Send by many tasks, each one mail after the other; return the seconds."""
        waiting = iter(mails(self._number))
        times: list[float] = []

        async def work() -> None:
            for mail in waiting:  # the tasks share this iterator
                started = time.perf_counter()
                self.ids.add(await self._client.send(mail))
                times.append(time.perf_counter() - started)

        began = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(self._tasks)))
        seconds = time.perf_counter() - began
        self.figures |= {"send ms p50": percentile(times, 0.5), "p99": percentile(times, 0.99)}
        return seconds

    async def lone(self) -> float:
        """Send one mail after the other, and insert a small row after each; return the seconds."""
        sends: list[float] = []
        inserts: list[float] = []
        db = await psycopg.AsyncConnection.connect(self._uri, autocommit=True)
        async with db:
            for _ in range(20):
                await db.execute(_INSERT, [1], prepare=True)
            for mail in mails(self._number):
                started = time.perf_counter()
                self.ids.add(await self._client.send(mail))
                between = time.perf_counter()
                await db.execute(_INSERT, [1], prepare=True)
                inserts.append(time.perf_counter() - between)
                sends.append(between - started)
        p50, of_row = percentile(sends, 0.5), percentile(inserts, 0.5)
        self.figures |= {
            "send ms p50": p50,
            "p99": percentile(sends, 0.99),
            "INSERT and COMMIT ms p50": of_row,
            "to INSERT and COMMIT": p50 / of_row,
        }
        return sum(sends)

    async def close(self) -> None:
        """End the connections."""
        await self._client.close()


async def produce(config: dict[str, Any]) -> None:
    """Do the work of the configuration and say the result."""
    going = asyncio.Event()
    listen(asyncio.get_running_loop(), lambda word: going.set())
    producer = Producer(config["uri"], config["number"], config["tasks"])
    await producer.warm_up()
    say(**{"is": "ready"})
    await going.wait()
    works: dict[str, Callable[[], Awaitable[float]]] = {
        "batch": producer.batch,
        "tasks": producer.tasks,
        "lone": producer.lone,
    }
    spent = time.process_time()
    seconds = await works[config["work"]]()
    spent = time.process_time() - spent
    await producer.close()
    figures = producer.figures
    say(**{"is": "result"}, seconds=seconds, cpu=spent, ids=len(producer.ids), figures=figures)
    await asyncio.Event().wait()  # cancelled when standard input ends


def main() -> None:
    """Serve until standard input ends; argument: JSON with uri, work, number and tasks."""
    run(uvloop.new_event_loop(), produce(json.loads(sys.argv[1])))


if __name__ == "__main__":
    main()
