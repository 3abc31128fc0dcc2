"""The worker of queued as a process, with a next hop that takes all mail at once.

Its commands are go and stop. It says how many rows are handled, and when the last one was.
"""

import asyncio
import json
import sys
import time
from typing import Literal

import uvloop

from bench.helper import listen, run, say
from bench.null_hop import NullChannel, NullTransport
from pgmta.config.environment import Log
from pgmta.config.types import HostPort
from pgmta.logs import configure
from pgmta.postgres.notify import listen as listen_for_mail
from pgmta.service import tune_memory
from queued.config import QueuedConfig, Worker
from queued.config.queued_config import QueuedEnvironment
from queued.delivery.transports import TRANSPORTS, TransportKind
from queued.process.queued_process import QueuedProcess
from queued.worker.delivery_worker import DeliveryWorker

HOSTNAME = "bench.pgmta.test"
_LOOK_INTERVAL_S = 0.005  # at how many rows are handled


async def _report(consumer: DeliveryWorker, began: float) -> None:
    before = -1
    while True:
        if consumer.handled != before:
            before = consumer.handled
            say(handled=before, first=began, last=time.monotonic())
        await asyncio.sleep(_LOOK_INTERVAL_S)


async def consume(uri: str, worker: Worker, stopped: asyncio.Event) -> list[str]:
    """Work mail off until the event; return the problems."""
    began = time.monotonic()
    routes: dict[str, HostPort | Literal["mx"]] = {"*": HostPort("127.0.0.1", 25)}
    config = QueuedConfig(environment=QueuedEnvironment(hostname=HOSTNAME), routes=routes)
    process = QueuedProcess(config, uri)
    consumer = DeliveryWorker(process, worker)
    beside = [
        *(work() for work in consumer.parts().values()),
        listen_for_mail(process.resources, [x.wake for x in consumer.loops]),
    ]
    background = [asyncio.create_task(work) for work in (*beside, _report(consumer, began))]
    loops = [asyncio.create_task(loop.run()) for loop in consumer.loops]
    await stopped.wait()
    await consumer.drain(loops)
    for task in background:
        task.cancel()
    outcomes = await asyncio.gather(*loops, *background, return_exceptions=True)
    await process.close()
    return [
        f"a part of the worker ended: {outcome!r}"
        for outcome in outcomes
        if outcome is not None and not isinstance(outcome, asyncio.CancelledError)
    ]


async def serve(uri: str, name: str) -> None:
    """Wait for go, consume until stop, and say the result."""
    going, stopped = asyncio.Event(), asyncio.Event()
    commands = {"go": going, "stop": stopped}
    listen(asyncio.get_running_loop(), lambda word: commands[word].set())
    tune_memory()
    say(**{"is": "ready"})
    await going.wait()
    problems = await consume(uri, Worker(name=name), stopped)
    taken = NullChannel.taken
    twice = sum(times > 1 for times in taken.values())
    say(**{"is": "result"}, rows=len(taken), twice=twice, problems=problems)
    await asyncio.Event().wait()  # cancelled when standard input ends


def main() -> None:
    """Serve until standard input ends; argument: JSON with uri and name."""
    config = json.loads(sys.argv[1])
    configure(Log(level="warning"), daemon="bench")
    TRANSPORTS["smtp"] = TransportKind(NullTransport)
    run(uvloop.new_event_loop(), serve(config["uri"], config["name"]))


if __name__ == "__main__":
    main()
