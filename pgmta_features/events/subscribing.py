"""Changes of subscriptions, repeated while open transactions hold them up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from pgmta.command import print_line
from pgmta.errors import Blocked
from pgmta.postgres.operator import OperatorConnection
from pgmta_features.events.event_table import EventTable

_REPEAT_S = 60.0  # in which the locks of the triggers are tried
_REPEAT_PAUSE_S = 0.5  # in which those that write mail go on


async def repeat_subscribing[T](db: OperatorConnection, work: Callable[[], Awaitable[T]]) -> T:
    """Do what makes or ends a subscription, for a command; say on stderr what it waits for.

    Raises Blocked after a minute.
    """
    end = time.monotonic() + _REPEAT_S
    told = False
    while True:
        try:
            return await work()
        except Blocked as error:
            if time.monotonic() > end or not told:
                who = await EventTable(db).blocker() or error
                waits = f"it waits for a transaction that has changed mail: {who}"
            if time.monotonic() > end:
                raise Blocked(waits) from error
            if not told:
                print_line(waits, err=True)
            told = True
        await asyncio.sleep(_REPEAT_PAUSE_S)
