"""Whether tokens can be consumed now."""

from __future__ import annotations

import psycopg

from pgmta.compose.token import KeyRings, Purpose
from pgmta.errors import StoreUnavailable
from pgmta.metrics.database_look import KeptReason
from pgmta.store.lifecycle.consumption import Consumptions
from pgmta.store.records.callbacks import CallbackNotes
from pgmta.store.schema import Schema


class Readiness(KeptReason):
    """Asks the database whether tokens can be consumed, and callbacks noted."""

    def __init__(
        self,
        rings: KeyRings,
        consumptions: Consumptions,
        notes: CallbackNotes,
        schema: Schema,
    ) -> None:
        super().__init__()
        self.rings = rings
        self.callbacks = False
        """Whether there are callbacks to take."""
        self._consumptions = consumptions
        self._notes = notes
        self._schema = schema

    async def _ask(self) -> str:
        if self._schema.problem:
            return "The database has another version."
        try:
            reason = await self._missing()
            if not reason and await self._consumptions.read_only():
                reason = "The database is read-only."
        except psycopg.errors.InsufficientPrivilege:
            return "The login may not read the accounts."
        except (StoreUnavailable, psycopg.Error):
            return "The database does not answer."
        return reason

    async def _missing(self) -> str:
        """Return which right or schema is missing; ''. Raises StoreUnavailable, psycopg.Error."""
        unsubscribes = bool(self.rings.rings[Purpose.UNSUBSCRIBE])
        consumes = any(ring for purpose, ring in self.rings.rings.items()
                       if purpose is not Purpose.UNSUBSCRIBE)  # fmt: skip
        if unsubscribes and not await self._consumptions.unsubscribable():
            return "The login may not unsubscribe recipients."
        if self.callbacks and not await self._notes.notable():
            return "The login may not note callbacks."
        if not consumes and (unsubscribes or self.callbacks):
            return ""
        if not await self._consumptions.there():
            return "The database has no schema lifecycle, or the login may not use it."
        await self._consumptions.check_accounts()
        return ""
