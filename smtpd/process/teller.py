"""Says to the master the figures of a serving process, and whether it can take mail."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress

from pgmta.errors import StoreUnavailable
from pgmta.metrics.database_look import DatabaseLook
from pgmta.metrics.series import dump
from smtpd.hooks.hook_set import HookSet
from smtpd.process.child_pipe import PROBLEM_KEY
from smtpd.server.server import Server


class Teller:
    """Writes a line to the pipe `master` for each question; `look` asks the database."""

    def __init__(
        self, master: int, server: Server, hooks: HookSet, look: Callable[[], Awaitable[None]]
    ) -> None:
        self._master = master
        self._server = server
        self._hooks = hooks
        self._look = look
        self._database = DatabaseLook(self._look_at_database)
        self._answer: asyncio.Task[None] | None = None

    def ask(self) -> None:
        """Answer soon: the database is asked first, for at most 2 s."""
        if not self._answer or self._answer.done():
            self._answer = asyncio.get_running_loop().create_task(self._tell_all())

    async def _look_at_database(self) -> None:
        """Ask the database. While mail waits for the end of an outage, it is taken all the same."""
        outage = self._server.committer.outage
        if outage.waits:
            return
        try:
            await self._look()
        except StoreUnavailable as error:
            if not outage.note(error):
                raise

    async def _tell_all(self) -> None:
        self.tell(await self._database.problem())

    def tell(self, away: str = "") -> None:
        """Write the present figures; `away` says why the database does not answer."""
        from smtpd.process.server_figures import (  # imports the library of metrics too
            server_problem,
            server_values,
        )

        values = server_values(self._server, self._hooks.hooks)
        if problem := away or server_problem(self._server):
            values[PROBLEM_KEY] = {(problem,): 1.0}
        with suppress(BrokenPipeError):  # the master has died
            os.write(self._master, dump(values))
