"""The MTA-STS policy of a recipient domain: kept, or fetched at its first use (RFC 8461)."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from functools import partial

from pgmta.errors import DeliveryError, Stage, StoreUnavailable
from pgmta.logs import get
from pgmta.model import StsPolicy, TlsResult
from queued.delivery.dns.resolver import Questions, texts
from queued.delivery.tls.mta_sts import record_id
from queued.delivery.tls.sts_fetch import PolicyFetcher, StsError
from queued.delivery.tls.tls_memory import TlsMemory

_FRESH_S = 60.0  # in which this process does not ask again
_MIN_FRESH_S = 5.0  # for a policy that ends sooner
_RETRY_PAUSE_S = 300.0  # after a failed fetch (RFC 8461, section 3.3)
_STORE_TIMEOUT_S = 10.0  # because a database that hangs must not keep connections
_MAX_DOMAINS = 10_000  # in memory

log = get("delivery")


class StsCache:
    """Has the policy of each domain. One search under way serves all who ask for a domain.

    A kept policy counts until it ends or a newer one was fetched (section 5.1). Meanwhile neither
    the DNS nor the web server can end it.
    """

    def __init__(self, questions: Questions, fetcher: PolicyFetcher, memory: TlsMemory) -> None:
        self._questions = questions
        self._fetcher = fetcher
        self._memory = memory
        self._known: OrderedDict[str, tuple[StsPolicy | None, float]] = OrderedDict()
        self._failed: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._under_way: dict[str, asyncio.Task[StsPolicy | None]] = {}

    async def policy(self, domain: str) -> StsPolicy | None:
        """Return the policy that counts now; None if there is none.

        Raises DeliveryError if the store can't be asked: it may have one.
        """
        known = self._known.get(domain)
        if known and known[1] > time.monotonic():
            return known[0]
        task = self._under_way.get(domain)
        if task is None:
            task = asyncio.create_task(self._find(domain))
            self._under_way[domain] = task
            task.add_done_callback(partial(self._found, domain))
        return await asyncio.shield(task)

    def _found(self, domain: str, task: asyncio.Task[StsPolicy | None]) -> None:
        self._under_way.pop(domain, None)
        if not task.cancelled():
            task.exception()  # read, or asyncio would log it if the tasks that asked are gone

    async def _find(self, domain: str) -> StsPolicy | None:
        try:
            async with asyncio.timeout(_STORE_TIMEOUT_S):
                policy = await self._memory.find_policy(domain)
        except (StoreUnavailable, TimeoutError) as error:
            line = f"4.3.0 MTA-STS policy of {domain} can't be read: {str(error) or 'no answer'}"
            raise DeliveryError(line, Stage.TLS) from None
        number = await self._announced(domain)
        if number and (policy is None or policy.id != number):
            policy = await self._newer(domain, number) or policy
        # with a max_age of 0 each connection would need a fetch
        fresh = min(_FRESH_S, max(_MIN_FRESH_S, policy.left)) if policy else _FRESH_S
        self._known[domain] = policy, time.monotonic() + fresh
        if len(self._known) > _MAX_DOMAINS:
            self._known.popitem(last=False)
        return policy

    async def _announced(self, domain: str) -> str | None:
        """Return the id of the policy that the DNS announces; None if there is none, or no answer.

        Both leave a kept policy as it is.
        """
        try:
            answer = await self._questions.ask(f"_mta-sts.{domain}", "TXT")
        except DeliveryError:
            return None
        return record_id(texts(answer.records))

    async def _newer(self, domain: str, number: str) -> StsPolicy | None:
        """Fetch and keep the policy with this id; None if there is no valid one to be had."""
        key = domain, number
        if self._failed.get(key, 0.0) > time.monotonic():
            return None
        try:
            found = await self._fetcher.fetch(domain)
        except StsError as error:
            self._failed[key] = time.monotonic() + _RETRY_PAUSE_S
            if len(self._failed) > _MAX_DOMAINS:
                self._failed.popitem(last=False)
            log.warning("no MTA-STS policy", domain=domain, reason=str(error))
            self._memory.count(TlsResult(domain, "sts", number, error.result, reason=str(error)))
            return None
        policy = StsPolicy(
            domain, number, found.mode, found.mx, found.max_age, float(found.max_age)
        )
        try:
            async with asyncio.timeout(_STORE_TIMEOUT_S):
                await self._memory.keep_policy(policy)
        except (StoreUnavailable, TimeoutError) as error:
            log.warning("MTA-STS policy not kept", domain=domain, reason=str(error))
        return policy
