"""The endpoints in PostgreSQL, as the process sees them that posts for them."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, NamedTuple

from pgmta.postgres.link_pool import LinkPool
from pgmta.selection import Selection
from pgmta.store.admin.upkeep import Look
from pgmta.store.queries import feature_queries
from pgmta_features.webhooks.endpoint import EndpointUrl, is_foreign, read_condition

_SQL = feature_queries("webhooks")

ANY_WEBHOOK = Look(_SQL["any_webhook"])


class Settings(NamedTuple):
    """What posting for an endpoint depends on; it begins anew when that changes."""

    id: int
    revision: int
    name: str
    tenant: str | None
    viewer: str | None
    url: str
    condition: str
    secret: str
    earlier_secret: str | None
    owner: str | None
    batch: int
    created_by: str


_SETTINGS = len(Settings._fields)
_MIN_EVENTS = 2  # are read: if one is refused, another one shows whether it is to blame


class Claimed(NamedTuple):
    """An endpoint that this process has leased.

    `failures` are those since the last success, `wait` the seconds until the next request, and
    `replays` says whether a replay was asked for.
    """

    settings: Settings
    failures: int
    wait: float
    replays: bool


class EventRow(NamedTuple):
    """An event, or a place without one, in the order of the log; `document` is JSON."""

    place: str
    id: str | None
    written_at: datetime | None
    document: str | None

    @property
    def before(self) -> str:
        """The place before it."""
        start, _, number = self.place.rpartition(".")
        return f"{start}.{int(number) - 1}"


class Endpoint:
    """An endpoint, with its texts read. Raises ValueError if they can't be."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.url = EndpointUrl.parse(settings.url)
        given = json.loads(settings.condition)
        self.condition: Selection | None = read_condition(given) if given else None
        """The mail whose events it gets; None: all."""

    @property
    def foreign(self) -> bool:
        """Whether it is the endpoint of a tenant or key, who may not reach our networks."""
        settings = self.settings
        return is_foreign(settings.tenant, settings.viewer, settings.created_by)

    @property
    def customer(self) -> str | None:
        """The tenant whose endpoint it is, or without one the key; None: an operator's."""
        settings = self.settings
        return (settings.tenant or settings.viewer or settings.created_by) if self.foreign else None


class LeasedWebhooks:
    """The endpoints that a process has leased. Each method raises StoreUnavailable, psycopg.Error.

    A lease holds while the process has heartbeats.
    """

    def __init__(self, links: LinkPool, worker: str) -> None:
        self._links = links
        self._worker = worker

    async def claim(self, lease: float) -> list[Claimed]:
        """Lease what no other process has that was alive `lease` seconds ago; return all leased."""
        rows = await self._links.run(_SQL["claim"], {"worker": self._worker, "lease": lease})
        return [Claimed(Settings(*row[:_SETTINGS]), *row[_SETTINGS:]) for row in rows]

    async def suspended(self) -> list[tuple[str, str]]:
        """Return the id and the name of each endpoint that is suspended."""
        return [(id_, name) for id_, name in await self._links.run(_SQL["suspended"], {})]

    async def batch(
        self, settings: Settings, reached: str | None, *, accepted: bool, anew: bool
    ) -> list[EventRow]:
        """Note what an endpoint has, and whether it accepted a request; return the next batch.

        A batch that it does not have comes again as it was, or `anew` with the events since then.
        """
        most = max(settings.batch, _MIN_EVENTS)
        fields = {"most": most, "reached": reached, "accepted": accepted, "anew": anew}
        return [EventRow(*row) for row in await self._run("batch", settings, **fields)]

    async def failed(
        self, settings: Settings, reason: str, wait: float, failures: int, reached: str | None
    ) -> float:
        """Note a failure; return for how many seconds requests have failed.

        `failures` are those in a row, and `reached` is up to where a part of the batch was
        accepted, None for nothing.
        """
        fields = {"reason": reason, "wait": wait, "failures": failures, "reached": reached}
        rows = await self._run("failed", settings, **fields)
        return float(rows[0][0]) if rows else 0.0

    async def set_aside(self, settings: Settings, row: EventRow, reason: str) -> None:
        """Keep an event that was refused from the others."""
        document = json.loads(row.document or "{}")
        fields = {
            "event": row.id, "kind": document["type"].removeprefix("mail."), "reason": reason,
            "message": document.get("message_id"), "after": row.before,
        }  # fmt: skip
        await self._run("set_aside", settings, **fields)

    async def replays(self, settings: Settings) -> list[tuple[str, str | None]]:
        """Return events whose replay was asked for, with their documents."""
        rows = await self._run("replays", settings, most=settings.batch)
        return [(event, document) for event, document in rows]

    async def replayed(self, settings: Settings, event: str) -> None:
        """Note that the endpoint has the event."""
        await self._run("replayed", settings, event=event)

    async def not_replayed(self, settings: Settings, event: str, reason: str) -> None:
        """Note that it has refused the event again."""
        await self._run("not_replayed", settings, event=event, reason=reason)

    async def suspend(
        self, settings: Settings, reason: str, notice: tuple[str, bytes] | None = None
    ) -> None:
        """Suspend an endpoint; `notice` is sender and content of a mail to its owner."""
        sender, content = notice or (None, None)
        await self._run("suspend", settings, reason=reason, sender=sender, content=content)

    async def _run(self, name: str, settings: Settings, **fields: Any) -> list[tuple[Any, ...]]:
        common = {"id": settings.id, "revision": settings.revision, "worker": self._worker}
        return await self._links.run(_SQL[name], common | fields)
