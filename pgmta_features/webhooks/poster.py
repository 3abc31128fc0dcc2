"""Posts events to endpoints: a process of queued leases them, and has a loop for each."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import cached_property

import psycopg

from pgmta.errors import StoreUnavailable
from pgmta.logs import get
from pgmta.metrics.series import MoreFigures, Series, Values
from pgmta.postgres import faults
from pgmta.postgres.link_pool import LinkPool
from pgmta.service import start_part
from pgmta_features.events.news import event_news
from pgmta_features.webhooks.config import WebhookSettings
from pgmta_features.webhooks.endpoint_loop import EndpointLoop
from pgmta_features.webhooks.leased_webhooks import (
    ANY_WEBHOOK,
    Claimed,
    Endpoint,
    LeasedWebhooks,
    Settings,
)
from pgmta_features.webhooks.notice import make_notice
from pgmta_features.webhooks.posting import EndpointConnection
from pgmta_features.webhooks.reach import find_reach
from pgmta_features.webhooks.slots import Slots
from queued.config import QueuedConfig
from queued.delivery.tls.tls_contexts import TlsContexts
from queued.process.queued_process import QueuedProcess

LEASE_S = 30.0
"""The endpoints of a process are taken over so long after its last heartbeat."""

_CLAIM_INTERVAL_S = 8.0  # of endpoints that others have left
_LOOK_INTERVAL_S = 1.0  # for a first endpoint
_CONNECTIONS = 3  # to PostgreSQL

SERIES = (
    Series("pgmta_queued_webhook_events_total", "counter",
           "Events that an endpoint has accepted.", ("id", "webhook")),
    Series("pgmta_queued_webhook_failures_total", "counter",
           "Requests that failed, or were refused.", ("id", "webhook")),
    Series("pgmta_queued_webhook_lag_seconds", "gauge",
           "Age of the oldest event that is being posted; 0: there is none.", ("id", "webhook")),
    Series("pgmta_queued_webhook_failing", "gauge",
           "1 while the last request to an endpoint failed.", ("id", "webhook")),
)  # fmt: skip
"""Their figures, of the endpoints that this process posts for."""

SUSPENDED = Series(
    "pgmta_queued_webhook_suspended", "gauge", "1 for each endpoint that is suspended; every "
    "queued has all of them.", ("id", "webhook"),
)  # fmt: skip
"""Nobody posts for them, so each process that looks for endpoints tells of them."""

log = get("webhooks")


class Poster:
    """Leases endpoints for a process and keeps their loops, until it is cancelled.

    Without endpoints it costs nothing beyond the look that all idle duties share.
    """

    def __init__(self, process: QueuedProcess) -> None:
        self._process = process
        self._loops: dict[Settings, EndpointLoop] = {}
        self._tasks: dict[Settings, asyncio.Task[None]] = {}
        self._suspended: list[tuple[str, str]] = []  # ids and names
        self._changed = asyncio.Event()
        self._news = event_news(process.resources)
        self._slots = Slots()
        self._config: QueuedConfig | None = None
        self._failed = False
        process.orders.add_reader("webhooks", self._told)
        process.more_figures.append(MoreFigures((*SERIES, SUSPENDED), self._values))

    @cached_property
    def _table(self) -> LeasedWebhooks:
        links = LinkPool(self._process.resources, "webhooks", _CONNECTIONS)
        return LeasedWebhooks(links, self._process.name)

    async def run(self) -> None:
        """Keep the loops until cancelled."""
        try:
            while True:
                try:
                    await self._keep()
                    self._failed = False
                except (StoreUnavailable, psycopg.Error) as error:
                    if not self._failed:
                        log.warning("webhooks wait", reason=faults.one_line(error))
                    self._failed = True
                pause = _CLAIM_INTERVAL_S if self._knows_any else _LOOK_INTERVAL_S
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._changed.wait()
                self._changed.clear()
        finally:
            await self._stop()

    @property
    def _knows_any(self) -> bool:
        return bool(self._loops or self._suspended)

    async def _told(self) -> None:
        if self._knows_any:
            self._changed.set()

    async def _keep(self) -> None:
        """Take endpoints, and begin and end loops. Raises StoreUnavailable, psycopg.Error."""
        self._process.schema.require()
        if not self._knows_any and not await self._process.tasks_due.may(ANY_WEBHOOK):
            return
        self._suspended = await self._table.suspended()
        if self._process.config is not self._config:
            await self._read(self._process.config)
        claimed = {each.settings: each for each in await self._table.claim(LEASE_S)}
        for settings in self._loops.keys() - claimed.keys():
            await self._end(settings)
        for settings, each in claimed.items():
            if settings not in self._loops or self._tasks[settings].done():
                await self._begin(each)
            elif each.replays:
                self._loops[settings].replay()

    async def _read(self, config: QueuedConfig) -> None:
        """Use another configuration: the loops begin anew."""
        self._reach = find_reach(config)
        self._secrets = config.section(WebhookSettings).known_secrets()
        self._contexts = TlsContexts(config.delivery.tls)
        self._config = config
        for settings in [*self._loops]:
            await self._end(settings)

    async def _begin(self, claimed: Claimed) -> None:
        settings = claimed.settings
        try:
            endpoint = Endpoint(settings)
        except ValueError as error:  # an operator has called webhook_add() with other texts
            log.error("webhook suspended: it can't be read", id=settings.id, reason=str(error))
            await self._table.suspend(settings, str(error))
            return
        connection = EndpointConnection(
            endpoint.url, self._reach, lambda: self._contexts.pkix, foreign=endpoint.foreign
        )
        loop = EndpointLoop(
            claimed,
            self._table,
            connection,
            self._secrets,
            self._slots,
            self._news,
            self._notice,
        )
        self._loops[settings] = loop
        self._tasks[settings] = start_part(f"webhook {settings.id}", loop.run)

    async def _end(self, settings: Settings) -> None:
        del self._loops[settings]
        task = self._tasks.pop(settings)
        task.cancel()
        await asyncio.wait([task])

    def _notice(self, endpoint: Endpoint, why: str, reason: str) -> tuple[str, bytes]:
        settings = endpoint.settings
        return make_notice(
            self._process.config.bounces, self._process.host, settings.owner or "", settings.name,
            settings.url, why, reason,
        )  # fmt: skip

    def _values(self) -> Values:
        found: Values = {series.name: {} for series in SERIES}
        for settings, loop in self._loops.items():
            labels = str(settings.id), settings.name
            values = float(loop.posted), float(loop.failed), loop.lag, float(loop.failing)
            for series, value in zip(SERIES, values, strict=True):
                found[series.name][labels] = value
        return found | {SUSPENDED.name: dict.fromkeys(self._suspended, 1.0)}

    async def _stop(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)


async def post(process: QueuedProcess) -> None:
    """Post events for a process until cancelled."""
    await Poster(process).run()
