"""Recipients in the table `recipients` of the database."""

from __future__ import annotations

import asyncio
from functools import partial

from pgmta.logs import get
from pgmta.postgres.outage import Outage
from pgmta.store.accounts.recipients import Recipients
from smtpd.recipients.recipient_verdict import Remembered, Verdict

_KNOWN_S, _UNKNOWN_S, _UNSURE_S = 60.0, 5.0, 1.0  # for which such a verdict counts
_ANSWER_TIMEOUT_S = 10.0
_RECIPIENTS_PER_QUESTION = 500

log = get("smtpd")


class RecipientTable:
    """Asks for the recipients of all sessions together: one statement at a time."""

    def __init__(self, store: Recipients, outage: Outage) -> None:
        self._store = store
        self._outage = outage
        self._memory = Remembered()
        self._waiting: dict[tuple[str, ...], asyncio.Future[None]] = {}
        self._task: asyncio.Task[None] | None = None

    def verdict(self, addresses: tuple[str, ...]) -> Verdict | None:
        """Return the verdict of the last seconds."""
        return self._memory.get(addresses)

    async def look_up(self, addresses: tuple[str, ...]) -> None:
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
                known: set[str] | None = None
                try:
                    known = await self._outage.outlast(partial(self._known, keys))
                except Exception as error:  # whatever it is: sessions wait for an answer
                    log.warning("recipients can't be looked up", reason=str(error))
                for key in keys:
                    if known is None:
                        self._memory.keep(key, Verdict.UNSURE, _UNSURE_S)
                    elif known.isdisjoint(key):
                        self._memory.keep(key, Verdict.UNKNOWN, _UNKNOWN_S)
                    else:
                        self._memory.keep(key, Verdict.KNOWN, _KNOWN_S)
                    self._waiting.pop(key).set_result(None)
        finally:
            self._task = None
            for future in self._waiting.values():
                future.cancel()
            self._waiting.clear()

    async def _known(self, keys: list[tuple[str, ...]]) -> set[str]:
        async with asyncio.timeout(_ANSWER_TIMEOUT_S):
            return await self._store.known({one for key in keys for one in key})
