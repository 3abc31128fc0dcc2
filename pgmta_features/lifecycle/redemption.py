"""Tokens that come back: their signature first, then the database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from pgmta.compose.token import secret_of
from pgmta.errors import StoreUnavailable
from pgmta.http.answers import HttpError
from pgmta.logs import get
from pgmta.postgres import faults
from pgmta_features.lifecycle.action_pages import ActionPage, ActionPages
from pgmta_features.lifecycle.consumption import Consumption, Consumptions
from pgmta_features.lifecycle.token_order import TokenOrder
from queued.web.refusals import PageError, away, refusal, too_many
from queued.web.site import Site

_DECLINED_TYPE = "urn:pgmta:action-declined"

log = get("web")


class Redemption:
    """Verifies and consumes tokens of clients.

    A token with a wrong signature asks no database, except one with a code: that is a part of the
    signature, and wrong codes are counted. Each refusal has the same answer.
    """

    def __init__(self, site: Site, consumptions: Consumptions) -> None:
        self._site = site
        self._consumptions = consumptions
        self._actions = ActionPages(site.tokens)

    async def find_action(self, name: str) -> ActionPage | None:
        """Return an action; None if there is none. Raises HttpError: 503."""
        with self._asking("an action could not be looked up", action=name):
            return await self._actions.find(name)

    async def verify(self, order: TokenOrder, client: str) -> None:
        """Check the signature, and with a code the lock. Raises HttpError: 422, 429, 503.

        While the database is away, a right code gets the same answer as a wrong one that it can't
        count. Otherwise anybody could find it then.
        """
        secret = await self.check(order, client)
        if not order.code:
            return
        with self._asking("a lock could not be looked up"):
            locked = await self._consumptions.locked(secret)
        if locked:
            self._site.clients.count_refusal(client)
            raise self._refused(order, client, "locked")

    async def check(self, order: TokenOrder, client: str) -> bytes:
        """Return the secret of a token with a right signature. Raises HttpError: 422, 429, 503."""
        if wait := self._site.clients.free_in(client):
            raise too_many(wait)
        ring = self._site.rings.ring(order.purpose, order.action)
        secret = ring.verify(order.token, order.code)
        if secret is not None:
            return secret
        # before the question to the database, during which more requests may come
        self._site.clients.count_refusal(client)
        why = "signature"
        unsigned = secret_of(order.token, order.purpose) if order.code else None
        if unsigned:
            with self._asking("a wrong code was not counted"):
                action = await self._actions.find(order.action_name)
                if action and action.code:
                    why = "code or signature"
                    await self._consumptions.failed(unsigned)
        raise self._refused(order, client, why)

    async def consume(self, secret: bytes, order: TokenOrder, client: str) -> Consumption:
        """Consume a token whose secret check() returned. Raises HttpError: 409, 422, 503.

        409 says that the function of the application declined, and the token is as it was.
        """
        action = order.action_name
        with self._asking("a token could not be consumed", action=action):
            found = await self._consumptions.consume(secret, action)
        if found.why == "refused":
            log.info("the application declined", action=action, client=client)
            detail = "The application can't do it now. The token can be used again."
            raise PageError("declined", detail, _DECLINED_TYPE, "Action declined", 409)
        if found.why:
            self._site.clients.count_refusal(client)
            raise self._refused(order, client, found.why)
        of = {} if found.account is None else {"account": found.account}
        log.info("token consumed", action=action, **of, client=client)
        return found

    @contextmanager
    def _asking(self, failure: str, **fields: str) -> Iterator[None]:
        """Turn errors of the database in the block into HttpError: 503, and log the reason."""
        try:
            self._site.schema.require()
            yield
        except (StoreUnavailable, psycopg.Error) as error:
            log.warning(failure, **fields, reason=faults.one_line(error))
            raise away() from None

    def _refused(self, order: TokenOrder, client: str, why: str) -> HttpError:
        log.info("token refused", action=order.action_name, why=why, client=client)
        return refusal()
