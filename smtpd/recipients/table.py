"""Recipients in tables of the database, asked for all sessions together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial

from pgmta.logs import get
from pgmta.postgres import faults
from pgmta.postgres.outage import Outage
from pgmta.store.accounts.recipients import Recipients
from smtpd.recipients.recipient_verdict import Remembered, Verdict

_SECONDS = {Verdict.KNOWN: 60.0, Verdict.UNKNOWN: 5.0, Verdict.UNSURE: 1.0}
_ANSWER_TIMEOUT_S = 10.0
_RECIPIENTS_PER_QUESTION = 500

log = get("smtpd")


type Key = tuple[str, ...]
"""What is asked of a recipient."""


class GroupedLook:
    """Asks for the recipients of all sessions together: one question at a time.

    `ask` returns those of the keys that are known. A verdict counts for its `seconds`.
    """

    def __init__(
        self,
        ask: Callable[[list[Key]], Awaitable[Collection[Key]]],
        seconds: Mapping[Verdict, float],
    ) -> None:
        self._known = ask
        self._seconds = seconds
        self._memory = Remembered()
        self._waiting: dict[Key, asyncio.Future[None]] = {}
        self._task: asyncio.Task[None] | None = None

    def verdict(self, addresses: Key) -> Verdict | None:
        """Return the verdict of the last seconds."""
        return self._memory.get(addresses)

    async def look_up(self, addresses: Key) -> None:
        """Ask the database, together with other sessions."""
        loop = asyncio.get_running_loop()
        if addresses not in self._waiting:
            self._waiting[addresses] = loop.create_future()
        if not self._task:
            self._task = loop.create_task(self._ask())
        await asyncio.shield(self._waiting[addresses])

    async def stop(self) -> None:
        """Ask no more."""
        if self._task:
            self._task.cancel()

    async def _ask(self) -> None:
        try:
            while self._waiting:
                keys = list(self._waiting)[:_RECIPIENTS_PER_QUESTION]
                known: Collection[Key] | None = None
                try:
                    known = await self._known(keys)
                except Exception as error:  # whatever it is: sessions wait for an answer
                    reason = faults.one_line(error)
                    log.warning("recipients can't be looked up", reason=reason)
                for key in keys:
                    verdict = Verdict.UNSURE
                    if known is not None:
                        verdict = Verdict.KNOWN if key in known else Verdict.UNKNOWN
                    self._memory.keep(key, verdict, self._seconds[verdict])
                    self._waiting.pop(key).set_result(None)
        finally:
            self._task = None
            for future in self._waiting.values():
                future.cancel()
            self._waiting.clear()


class RecipientTable(GroupedLook):
    """Knows the recipients in the table `recipients`; a key has spellings of one."""

    def __init__(self, store: Recipients, outage: Outage) -> None:
        async def known(keys: list[Key]) -> list[Key]:
            async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                found = await store.known({one for key in keys for one in key})
            return [key for key in keys if not found.isdisjoint(key)]

        super().__init__(lambda keys: outage.outlast(partial(known, keys)), _SECONDS)
