"""Recipients of campaigns who unsubscribe: the signature first, then the database."""

from __future__ import annotations

import psycopg

from pgmta.compose.token import KeyRings, Purpose, recipient_numbers
from pgmta.errors import StoreUnavailable
from pgmta.logs import get
from pgmta.postgres import faults
from pgmta.store.lifecycle.consumption import Consumptions
from pgmta.store.schema import Schema
from queued.web.clients import Clients
from queued.web.refusals import away, refusal, too_many

log = get("web")


class Unsubscriptions:
    """Unsubscribes those whose tokens are signed. A forged token asks no database.

    Each refusal has the same answer, and each repetition that of the first time.
    """

    def __init__(
        self, rings: KeyRings, clients: Clients, consumptions: Consumptions, schema: Schema
    ) -> None:
        self.rings = rings
        self._clients = clients
        self._consumptions = consumptions
        self._schema = schema

    async def unsubscribe(self, token: str, client: str) -> None:
        """Unsubscribe the recipient whom a token names. Raises HttpError: 422, 429, 503."""
        if wait := self._clients.free_in(client):
            raise too_many(wait)
        octets = self.rings.rings[Purpose.UNSUBSCRIBE].verify(token)
        if octets is None:
            self._clients.count_refusal(client)
            log.info("token refused", action="unsubscribe", why="signature", client=client)
            raise refusal()
        campaign, number = recipient_numbers(octets)
        try:
            self._schema.require()
            known = await self._consumptions.unsubscribe(campaign, number)
        except (StoreUnavailable, psycopg.Error) as error:
            log.warning("a recipient could not unsubscribe", reason=faults.one_line(error))
            raise away() from None
        if not known:  # a provider follows old links for many: its other clicks must count
            log.info("token refused", action="unsubscribe", why="unknown", client=client)
            raise refusal()
        log.info("unsubscribed", campaign=campaign, number=number, client=client)
