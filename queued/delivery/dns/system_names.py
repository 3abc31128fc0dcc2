"""Addresses by the system's resolver, which knows /etc/hosts and search lists."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from dataclasses import dataclass

from pgmta.errors import DeliveryError, Stage

_THREADS = 8  # look-ups under way, at most: one may hang for half a minute
_KEPT = 30.0  # seconds for which addresses are kept: the system has no TTL for them
_FAILURE = 2.0  # seconds for which a failure is kept


@dataclass(frozen=True, slots=True)
class _Found:
    """The addresses of a name, or the reason why there are none."""

    addresses: tuple[str, ...]
    reason: str
    until: float


class SystemNames:
    """Looks up the names that routes have, each in its own thread.

    One look-up under way serves all who want the name. No name has more than one thread, so the
    names of the configuration bound their number.
    """

    def __init__(self, timeout: float, ipv6: bool) -> None:
        self._timeout = timeout
        self._family = socket.AF_UNSPEC if ipv6 else socket.AF_INET
        self._under_way: dict[str, asyncio.Future[_Found]] = {}
        self._kept: dict[str, _Found] = {}

    @property
    def full(self) -> bool:
        """Whether 8 look-ups are under way, so that no further one may begin."""
        return len(self._under_way) >= _THREADS

    async def addresses(self, name: str) -> tuple[str, ...]:
        """Return the addresses of a name, at least one. Raises DeliveryError."""
        found = self._kept.get(name)
        if found is None or found.until <= time.monotonic():
            future = self._under_way.get(name) or self._begin(name)
            try:
                async with asyncio.timeout(self._timeout):
                    found = await asyncio.shield(future)
            except TimeoutError:
                found = _Found((), f"no answer in {self._timeout:g} s", 0.0)
        if found.addresses:
            return found.addresses
        raise DeliveryError(f"4.4.3 address of {name}: {found.reason}", Stage.ADDRESS)

    def _begin(self, name: str) -> asyncio.Future[_Found]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_Found] = loop.create_future()
        self._under_way[name] = future

        def end(found: _Found) -> None:
            del self._under_way[name]
            self._kept[name] = found
            if not future.done():
                future.set_result(found)

        def ask() -> None:
            found = self._ask(name)
            try:
                loop.call_soon_threadsafe(end, found)
            except RuntimeError:  # the loop has ended meanwhile
                return

        # a daemon: the process does not wait for it at its end
        threading.Thread(target=ask, name=f"address of {name}", daemon=True).start()
        return future

    def _ask(self, name: str) -> _Found:
        """Ask the system, in a thread."""
        try:
            infos = socket.getaddrinfo(name, None, family=self._family, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            return _Found((), reason, time.monotonic() + _FAILURE)
        addresses = tuple(dict.fromkeys(str(info[4][0]) for info in infos))
        return _Found(addresses, "it has none", time.monotonic() + _KEPT)
