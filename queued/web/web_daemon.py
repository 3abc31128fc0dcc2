"""Composition root of `queued web`."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from functools import partial

from pgmta.config.joined import lasting_sections
from pgmta.errors import ConfigError
from pgmta.features import begin_servers
from pgmta.http.server import HttpServer, bind
from pgmta.logs import get
from pgmta.service import ServiceManager, Signals, first, start_part, tune_memory
from queued.web.site import Site
from queued.web.site_parts import parts, warnings_about
from queued.web.web_config import WebConfig, WebListener

_END_TIMEOUT_S = 5.0  # for answers that are due when the process ends
_READY_TEXT = "serves its listeners"

log = get("web")


class WebDaemon:
    """One process. It serves while PostgreSQL is away: signatures need no database.

    `reread` reads the configuration again, for SIGHUP. It raises ConfigError.
    """

    def __init__(
        self, config: WebConfig, uri: str, reread: Callable[[], WebConfig], signals: Signals
    ) -> None:
        self._reread = reread
        self._signals = signals
        self._site = Site(config, uri, parts(config))
        self._servers = {
            each: HttpServer("web", self._site.clients.unit_of) for each in self._site.served
        }

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT, then answer the last requests.

        Raises the error of a part that ended by itself, and ConfigError for an address that is not
        free.
        """
        signals, host = self._signals, self._site.config.environment.hostname
        if signals.stop.is_set():
            return
        for warning in warnings_about(self._site.config):
            log.warning("configuration", reason=warning)
        sockets = [(place.audience, _bind(place)) for place in self._site.config.listen]
        link = self._site.resources.link("heartbeat")
        heartbeat = self._site.config.role.heartbeat(link, self._site.schema, host)
        manager = ServiceManager()
        beat = partial(heartbeat.run, lambda: None, asyncio.Event())
        parts = [
            start_part("watchdog", manager.keep_watch),
            start_part("heartbeat", beat, signals.stop),
        ]
        await self._serve()
        for audience, bound in sockets:
            await self._servers[audience].listen(bound)
        servers = await begin_servers("web", self._site, [*self._servers.values()])
        tune_memory()
        manager.ready(_READY_TEXT)
        log.info(
            "ready",
            listen=[f"{each.address} {each.port} {' '.join(each.serves)}"
                    for each in self._site.config.listen],
        )  # fmt: skip
        while not signals.stop.is_set():
            await first(signals.stop, signals.reload)
            if signals.reload.is_set():
                signals.reload.clear()
                manager.reloading()
                await self._reload()
                manager.ready(_READY_TEXT)
        manager.stopping()
        for server in servers:
            server.begin_stop()
        await asyncio.gather(*(each.stop(_END_TIMEOUT_S) for each in self._servers.values()))
        failed = [task for task in parts if task.done() and not task.cancelled()]
        for task in parts:
            task.cancel()
        await asyncio.gather(*parts, return_exceptions=True)
        await heartbeat.leave()
        await self._site.resources.close()
        for server in servers:
            await server.stop()
        log.info("stopped")
        for task in failed:
            task.result()

    async def _serve(self) -> None:
        for audience, server in self._servers.items():
            await server.serve(self._site.served[audience])

    async def _reload(self) -> None:
        try:
            # not in the loop: it reads files, and may ask name servers for the name of the host
            config = await asyncio.to_thread(self._reread)
        except ConfigError as error:
            log.error("configuration kept as it was", problems=error.problems)
            return
        except Exception as error:  # a defect, because of which no request may be refused
            log.critical("configuration kept as it was", exc_info=error)
            return
        lasting = lasting_sections(type(config))
        now = self._site.config
        changed = [name for name in lasting if getattr(config, name) != getattr(now, name)]
        if changed:
            problems = [f"{name}: needs a restart" for name in changed]
            log.warning("configuration kept in part", problems=problems)
        config = config.model_copy(update={name: getattr(now, name) for name in lasting})
        for warning in warnings_about(config):
            log.warning("configuration", reason=warning)
        try:
            self._site.configure(config)
            await self._serve()
        except Exception as error:  # a defect; the next SIGHUP may bring a better file
            log.critical("configuration is in use in part", exc_info=error)
            return
        log.info("configuration read again")


def _bind(place: WebListener) -> socket.socket:
    try:
        return bind(place.address, place.port)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(
            [f"cannot listen on {place.address}, port {place.port}: {reason}"]
        ) from None
