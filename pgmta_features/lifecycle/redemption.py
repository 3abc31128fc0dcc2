"""Tokens that come back: their signature first, then the database."""

from __future__ import annotations

import psycopg

from pgmta.compose.token import Purpose, secret_of
from pgmta.errors import StoreUnavailable
from pgmta.http.answers import HttpError
from pgmta.logs import get
from pgmta.postgres import faults
from pgmta_features.lifecycle.consumption import Consumption, Consumptions
from pgmta_features.lifecycle.token_order import TokenOrder
from queued.web.refusals import away, refusal, too_many
from queued.web.site import Site

_ACTIONS_BY_PURPOSE = {Purpose.ACTIVATE: "activation", Purpose.RECOVER: "password_recovery"}

log = get("web")


class Redemption:
    """Verifies and consumes tokens of clients.

    A token with a wrong signature asks no database, except that of a recovery: its code is a part
    of the signature, and wrong codes are counted. Each refusal has the same answer.
    """

    def __init__(self, site: Site, consumptions: Consumptions) -> None:
        self._site = site
        self._consumptions = consumptions

    async def verify(self, order: TokenOrder, client: str) -> None:
        """Check the signature, and of a recovery the lock. Raises HttpError: 422, 429, 503.

        While the database is away, a right code gets the same answer as a wrong one that it can't
        count. Otherwise anybody could find it then.
        """
        secret = await self._secret(order, client)
        if order.purpose is not Purpose.RECOVER:
            return
        try:
            self._site.schema.require()
            locked = await self._consumptions.locked(secret)
        except (StoreUnavailable, psycopg.Error) as error:
            log.warning("a lock could not be looked up", reason=faults.one_line(error))
            raise away() from None
        if locked:
            self._site.clients.count_refusal(client)
            raise self._refused(order, client, "locked")

    async def consume(self, order: TokenOrder, client: str) -> Consumption:
        """Consume a token. Raises HttpError: 422, 429, 503."""
        secret = await self._secret(order, client)
        action = _ACTIONS_BY_PURPOSE[order.purpose]
        try:
            self._site.schema.require()
            found = await self._consumptions.consume(secret, action)
        except (StoreUnavailable, psycopg.Error) as error:
            log.warning(
                "a token could not be consumed", action=action, reason=faults.one_line(error)
            )
            raise away() from None
        if found.why:
            self._site.clients.count_refusal(client)
            raise self._refused(order, client, found.why)
        log.info("token consumed", action=action, account=found.account, client=client)
        return found

    async def _secret(self, order: TokenOrder, client: str) -> bytes:
        """Return the secret of a token whose signature is right. Raises HttpError."""
        if wait := self._site.clients.free_in(client):
            raise too_many(wait)
        secret = self._site.rings.rings[order.purpose].verify(order.token, order.code)
        if secret is not None:
            return secret
        # before the question to the database, during which more requests may come
        self._site.clients.count_refusal(client)
        unsigned = secret_of(order.token) if order.purpose is Purpose.RECOVER else None
        if unsigned:
            try:
                self._site.schema.require()
                await self._consumptions.failed(unsigned)
            except (StoreUnavailable, psycopg.Error) as error:
                log.warning("a wrong code was not counted", reason=faults.one_line(error))
                raise away() from None
        raise self._refused(order, client, "signature")

    def _refused(self, order: TokenOrder, client: str, why: str) -> HttpError:
        log.info("token refused", action=_ACTIONS_BY_PURPOSE[order.purpose], why=why, client=client)
        return refusal()
