"""Composition root of `queued web`."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from functools import partial

from pgmta.compose.token import KeyRings
from pgmta.daemon_role import WEB
from pgmta.errors import ConfigError
from pgmta.http.server import HttpServer, bind
from pgmta.logs import get
from pgmta.metrics.metrics_server import MetricsServer
from pgmta.postgres.resources import Resources
from pgmta.service import ServiceManager, Signals, first, start_part, tune_memory
from pgmta.store.lifecycle.consumption import Consumptions
from pgmta.store.records.callbacks import CallbackNotes
from pgmta.store.schema import Schema
from queued.web.callback_receipt import CallbackReceipts
from queued.web.clients import Clients
from queued.web.readiness import Readiness
from queued.web.redemption import Redemption
from queued.web.site import Site
from queued.web.unsubscription import Unsubscriptions
from queued.web.web_config import WebConfig, WebListener
from queued.web.web_page import WebPage

_FIXED = ("environment", "listen", "connections", "metrics", "log")
"""Sections that a running process does not take from a changed file."""
_END_S = 5.0  # for answers that are due when the process ends
_SERVES = "serves pages of tokens"

log = get("web")


class WebDaemon:
    """One process. It serves while PostgreSQL is away: signatures need no database.

    `reread` reads the configuration again, for SIGHUP. It raises ConfigError.
    """

    def __init__(
        self, config: WebConfig, uri: str, reread: Callable[[], WebConfig], signals: Signals
    ) -> None:
        self._config = config
        self._reread = reread
        self._signals = signals
        self._resources = Resources(uri, WEB.name)
        self._schema = Schema()
        consumptions = Consumptions(self._resources, config.connections)
        self._clients = Clients(config)
        rings = KeyRings.of(config.tokens)
        self._redemption = Redemption(rings, self._clients, consumptions, self._schema)
        self._unsubscriptions = Unsubscriptions(rings, self._clients, consumptions, self._schema)
        notes = CallbackNotes(self._resources)
        self._readiness = Readiness(rings, consumptions, notes, self._schema)
        self._readiness.callbacks = bool(config.callbacks)
        callbacks = CallbackReceipts(notes, self._schema)
        self._site = Site(
            config,
            self._clients,
            self._redemption,
            self._unsubscriptions,
            callbacks,
            self._readiness,
        )
        self._server = HttpServer("web", self._clients.unit_of)

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT, then answer the last requests.

        Raises the error of a part that ended by itself, and ConfigError for an address that is not
        free.
        """
        signals, host = self._signals, self._config.environment.hostname
        if signals.stop.is_set():
            return
        for warning in self._config.warnings:
            log.warning("configuration", reason=warning)
        sockets = [_bind(place) for place in self._config.listen]
        heartbeat = WEB.heartbeat(self._resources.link("heartbeat"), self._schema, host)
        manager = ServiceManager()
        beat = partial(heartbeat.run, lambda: None, asyncio.Event())
        parts = [
            start_part("watchdog", manager.keep_watch),
            start_part("heartbeat", beat, signals.stop),
        ]
        await self._server.serve(self._site.served)
        for each in sockets:
            await self._server.listen(each)
        page = await self._serve_page()
        tune_memory()
        manager.ready(_SERVES)
        log.info("ready", listen=[f"{each.address} {each.port}" for each in self._config.listen])
        while not signals.stop.is_set():
            await first(signals.stop, signals.reload)
            if signals.reload.is_set():
                signals.reload.clear()
                manager.reloading()
                await self._reload()
                manager.ready(_SERVES)
        manager.stopping()
        if page:
            page.begin_stop()
        await self._server.stop(_END_S)
        failed = [task for task in parts if task.done() and not task.cancelled()]
        for task in parts:
            task.cancel()
        await asyncio.gather(*parts, return_exceptions=True)
        await heartbeat.leave()
        await self._resources.close()
        if page:
            await page.stop()
        log.info("stopped")
        for task in failed:
            task.result()

    async def _serve_page(self) -> MetricsServer | None:
        """Return the server of figures once it answers. Raises ConfigError."""
        if not (settings := self._config.metrics).listen:
            return None
        page = WebPage(self._site, self._server, self._resources)
        server = MetricsServer("queued web", settings, page.scrape, self._readiness.problem)
        await server.start()
        return server

    async def _reload(self) -> None:
        try:
            config = self._reread()
        except ConfigError as error:
            log.error("configuration kept as it was", problems=error.problems)
            return
        except Exception as error:  # a defect, for which no request is refused
            log.critical("configuration kept as it was", exc_info=error)
            return
        changed = [n for n in _FIXED if getattr(config, n) != getattr(self._config, n)]
        if changed:
            problems = [f"{name}: needs a restart" for name in changed]
            log.warning("configuration kept in part", problems=problems)
        self._config = config = config.model_copy(
            update={name: getattr(self._config, name) for name in _FIXED}
        )
        for warning in config.warnings:
            log.warning("configuration", reason=warning)
        rings = KeyRings.of(config.tokens)
        self._redemption.rings = self._unsubscriptions.rings = self._readiness.rings = rings
        self._readiness.callbacks = bool(config.callbacks)
        self._clients.configure(config)
        self._site.configure(config)
        await self._server.serve(self._site.served)
        log.info("configuration read again")


def _bind(place: WebListener) -> socket.socket:
    try:
        return bind(place.address, place.port)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(
            [f"cannot listen on {place.address}, port {place.port}: {reason}"]
        ) from None
