"""Later words of providers about mail that they took: the statements of `queued web`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

import psycopg

from pgmta.postgres import faults
from pgmta.postgres.binary import Bigints, Instants, Texts
from pgmta.postgres.link_pool import LinkPool
from pgmta.postgres.resources import Resources
from pgmta.store.queries import feature_queries

_SQL = feature_queries("callbacks")
_MAX_CONNECTIONS = 2  # beside those of tokens, which many callbacks may not delay
_EVENTS_PER_COMMIT = 100  # few, so that no lock is held long


class NoteOutcome(StrEnum):
    """The outcome of an event, as callbacks_note() returns it."""

    NEW = "new"
    KNOWN = "known"  # the event was noted before
    EARLY = "early"  # the attempt is not in the log yet
    UNKNOWN = "unknown"  # the log has no such attempt
    REFUSED = "refused"  # PostgreSQL refuses this event, now and later


@dataclass(frozen=True, slots=True)
class ProviderEvent:
    """A later word of a provider about a row: delivered, bounced, failed or complained.

    `answer_class` is that of a failure, '' for other.
    """

    message_id: int
    row_id: int
    kind: str
    code: str
    sub_type: str
    text: str
    at: datetime
    answer_class: str = ""


class CallbackNotes:
    """Notes events in the log. The methods raise StoreUnavailable and psycopg.Error."""

    def __init__(self, resources: Resources) -> None:
        self._pool = LinkPool(resources, "callbacks", _MAX_CONNECTIONS)

    async def note(
        self, hosts: Sequence[str], tenants: Sequence[str] | None, events: Sequence[ProviderEvent]
    ) -> list[NoteOutcome]:
        """Note events of mail that went to one of the hosts; return the outcome of each.

        If PostgreSQL refuses one, the others are noted nevertheless.
        """
        outcomes: list[NoteOutcome] = []
        for at in range(0, len(events), _EVENTS_PER_COMMIT):
            batch = events[at : at + _EVENTS_PER_COMMIT]
            try:
                outcomes += await self._note(hosts, tenants, batch)
            except psycopg.Error as error:
                if not faults.about_row(error):
                    raise
                for each in batch:
                    outcomes += await self._note_one(hosts, tenants, each)
        return outcomes

    async def _note_one(
        self, hosts: Sequence[str], tenants: Sequence[str] | None, event: ProviderEvent
    ) -> list[NoteOutcome]:
        try:
            return await self._note(hosts, tenants, [event])
        except psycopg.Error as error:
            if not faults.about_row(error):
                raise
            return [NoteOutcome.REFUSED]

    async def _note(
        self, hosts: Sequence[str], tenants: Sequence[str] | None, events: Sequence[ProviderEvent]
    ) -> list[NoteOutcome]:
        ((found,),) = await self._pool.run(_SQL["note"], {
            "hosts": Texts(hosts),
            "tenants": None if tenants is None else Texts(tenants),
            "messages": Bigints(event.message_id for event in events),
            "rows": Bigints(event.row_id for event in events),
            "kinds": Texts(event.kind for event in events),
            "classes": Texts(event.answer_class for event in events),
            "codes": Texts(event.code for event in events),
            "sub_types": Texts(event.sub_type for event in events),
            "words": Texts(event.text for event in events),
            "ats": Instants(event.at for event in events),
        })  # fmt: skip
        return [NoteOutcome(each) for each in found]

    async def notable(self) -> bool:
        """Return whether the login may note events."""
        ((found,),) = await self._pool.run(_SQL["notable"], {})
        return bool(found)
