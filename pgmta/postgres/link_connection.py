"""A connection to PostgreSQL that knows its process on the server.

Undocumented parts of psycopg are used here: the method `AsyncConnection.wait` and the generators
that it runs. Checked with psycopg 3.3.9; tests/pgmta/test_private_names.py fails
when they change.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import psycopg
from psycopg import errors as pg_errors
from psycopg import waiting
from psycopg.errors import Diagnostic
from psycopg.pq import TransactionStatus

from pgmta.errors import AnswerLost, Backend, Undecided
from pgmta.postgres import faults
from pgmta.postgres.durability import PROOF, UNPROVEN, casts_doubt

CANCEL_TIMEOUT_S = 5.0
"""For the server to end a statement whose caller has gone."""


class LinkConnection(psycopg.AsyncConnection[tuple[Any, ...]]):
    """psycopg's connection, which is closed if a cancelled statement does not end."""

    backend: Backend
    timeline: int | None = None
    """The server_timeline() of the server; None if it takes no writes."""
    codec = ""
    """Python's name of an encoding that lacks characters, if the database has one."""
    composites: Mapping[str, int] = {}
    """The oids of composite types of the schema, by name; the database may not have it yet."""
    doubtful = False
    """Whether a commit may not have waited for its standby: its user has to call `prove`."""

    def hear_doubts(self) -> None:
        """Set `doubtful` from now on."""
        self.add_notice_handler(self._note)

    def _note(self, notice: Diagnostic) -> None:
        self.doubtful = self.doubtful or casts_doubt(notice)

    async def prove(self, seconds: float) -> None:
        """Return when all that was committed and visible before is durable.

        It is tried again if its wait is cancelled. Raises Undecided if no proof comes in that time,
        and AnswerLost if the connection breaks; it is closed then.
        """
        try:
            async with asyncio.timeout(seconds):
                self.doubtful = True
                while self.doubtful:
                    self.doubtful = False
                    await self.execute(PROOF, prepare=False)
        except TimeoutError:
            raise Undecided(UNPROVEN) from None
        except psycopg.Error as error:
            await self.close()
            raise AnswerLost(faults.one_line(error), self.backend) from error
        finally:
            self.doubtful = False

    @property
    def broken(self) -> bool:
        """Whether the server has closed the connection or reset it.

        libuv reports an error only once, and the server's last octets may stand before it.
        """
        if self.closed:
            return True
        look = select.poll()
        look.register(self.pgconn.socket, select.POLLRDHUP)
        return bool(look.poll(0))

    async def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        """Run the generator of a statement to its end and return its value."""
        try:
            return await waiting.wait_async(gen, self.pgconn.socket, interval, timeout)
        except asyncio.CancelledError:
            if self.pgconn.transaction_status == TransactionStatus.ACTIVE:
                await self.give_up(lambda: waiting.wait_async(gen, self.pgconn.socket, interval))
            raise

    async def give_up(self, ended: Callable[[], Awaitable[object]]) -> None:
        """End the statement under way on the server, or else close the connection.

        `ended` waits for its end, for which psycopg would wait without a limit.
        """
        try:
            async with asyncio.timeout(CANCEL_TIMEOUT_S):
                await self.cancel_safe(timeout=CANCEL_TIMEOUT_S)
                await ended()
        except pg_errors.QueryCanceled:
            pass
        except Exception:  # the cancellation of the caller counts more
            self.pgconn.finish()
        except BaseException:
            self.pgconn.finish()
            raise
