"""Signals of a daemon, turned into events."""

from __future__ import annotations

import asyncio
import gc
import signal


class Signals:
    """`stop` is set by SIGTERM or SIGINT, `reload` by SIGHUP (the daemon clears it)."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.reload = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop.set)
        loop.add_signal_handler(signal.SIGHUP, self.reload.set)


async def first(*events: asyncio.Event, timeout: float | None = None) -> bool:
    """Wait until one of the events is set; False where `timeout` seconds passed before."""
    if any(event.is_set() for event in events):
        return True
    tasks = [asyncio.create_task(event.wait()) for event in events]
    try:
        done, _ = await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        return bool(done)
    finally:
        for task in tasks:
            task.cancel()


def steady() -> None:
    """Tell the garbage collector that what is there now stays: it need not look at it again.

    A daemon makes few cycles; with the usual thresholds a fiftieth of its time went there.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
