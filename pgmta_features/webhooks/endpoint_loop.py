"""Posts the events of one endpoint: one request after the other, behind its cursor."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import psycopg

from pgmta.errors import StoreUnavailable
from pgmta.logs import get
from pgmta.postgres import faults
from pgmta_features.events.news import EventNews
from pgmta_features.webhooks.endpoint import fits
from pgmta_features.webhooks.leased_webhooks import Claimed, Endpoint, EventRow, LeasedWebhooks
from pgmta_features.webhooks.posting import EndpointConnection, Posted
from pgmta_features.webhooks.retries import GIVE_UP_S, Halving, wait_after
from pgmta_features.webhooks.signing import Secrets, signed_fields
from pgmta_features.webhooks.slots import Slots

_DATABASE_PAUSE_S = 2.0  # after PostgreSQL could not be asked
_LOOK_INTERVAL_S = 5.0  # without news of events
_MIN_TRIAL_PAUSE_S, _MAX_TRIAL_PAUSE_S = 1.0, 60.0  # before a trial; the pause doubles
_MAX_FIRST_PAUSE_S = 60.0  # after a start, which may be what mends a failure
_OTHER_EVENTS = 3  # that are tried before an event is to blame
_GONE = 410

log = get("webhooks")

type Notice = Callable[[Endpoint, str, str], tuple[str, bytes]]
"""Returns sender and content of the mail to the owner; it gets why, and the last failure."""


class EndpointLoop:
    """Posts for one endpoint until it is cancelled, or the endpoint ends.

    The cursor moves in the database after the answer. So after a crash a batch is posted again, as
    it was and with the same id.
    """

    def __init__(
        self, claimed: Claimed, table: LeasedWebhooks, connection: EndpointConnection,
        secrets: Secrets, slots: Slots, news: EventNews, notice: Notice,
    ) -> None:  # fmt: skip
        self.endpoint = Endpoint(claimed.settings)
        self._table = table
        self._connection = connection
        self._secrets = secrets
        self._slots = slots
        self._notice = notice
        self._failures = claimed.failures
        self._due = time.monotonic() + min(claimed.wait, _MAX_FIRST_PAUSE_S)
        self._replays = claimed.replays
        self._news = news
        self._mark = news.mark()  # before the last read
        self._asked = asyncio.Event()  # for a replay, since the last read
        self._accepted = False  # a request, which the database does not know yet
        self._ended = False  # by a failure
        self._trial_pause = 0.0  # before new events are tried after a refusal; 0: they are not
        self._log = log.bind(webhook=claimed.settings.name, id=claimed.settings.id)
        self.posted = 0
        """Events that were accepted."""
        self.failed = 0
        """Requests that were not."""
        self.behind: datetime | None = None
        """When the oldest event of the batch under way was written; None: there is none."""

    def replay(self) -> None:
        """Post what was asked for once more."""
        self._replays = True
        self._asked.set()

    @property
    def failing(self) -> bool:
        """Whether the last request failed."""
        return self._failures > 0

    @property
    def lag(self) -> float:
        """The age of the oldest event that is not posted, in seconds."""
        return (datetime.now(UTC) - self.behind).total_seconds() if self.behind else 0.0

    async def run(self) -> None:
        """Post until cancelled, or until the endpoint is suspended."""
        reached, away = None, False
        try:
            while not self._ended:
                try:
                    trial = await self._until_due()
                    self._mark = self._news.mark()
                    self._asked.clear()
                    rows = await self._table.batch(
                        self.endpoint.settings, reached, accepted=self._accepted,
                        anew=self._trial_pause > 0,
                    )  # fmt: skip
                    reached, self._accepted, away = None, False, False
                    if trial:
                        await self._try_others(await self._wanted(rows))
                    elif self._replays:
                        await self._replay()
                    elif not rows:
                        self.behind = None
                        await self._news.wait(self._mark, _LOOK_INTERVAL_S, self._asked)
                    elif await self._deliver(await self._wanted(rows)):
                        reached = rows[-1].place
                except (StoreUnavailable, psycopg.Error) as error:
                    if not away:
                        self._log.warning("events can't be read", reason=faults.one_line(error))
                    away = True
                    await asyncio.sleep(_DATABASE_PAUSE_S)
        finally:
            self._connection.close()

    async def _wanted(self, rows: Sequence[EventRow]) -> list[EventRow]:
        """Return the events that meet the condition of the endpoint."""
        condition, found = self.endpoint.condition, []
        for row in rows:
            if row.document is None:
                continue
            if condition is not None:
                await asyncio.sleep(0)  # it may take milliseconds, and this process delivers mail
                if not fits(condition, row.document):
                    continue
            found.append(row)
        return found

    async def _until_due(self) -> bool:
        """Wait for the end of the pause after a failure; return whether a trial ends it before.

        If events were refused, new ones may show that only those are bad.
        """
        if (seconds := self._due - time.monotonic()) <= 0:
            return False
        try:
            async with asyncio.timeout(seconds):
                if self._trial_pause:
                    await self._news.wait(self._mark, seconds, self._asked)
                await asyncio.sleep(self._trial_pause or seconds)
        except TimeoutError:
            return False
        return self._trial_pause > 0

    async def _deliver(self, events: Sequence[EventRow]) -> bool:
        """Post a batch; return whether the endpoint has all but those that were set aside.

        Raises StoreUnavailable, psycopg.Error.
        """
        most = self.endpoint.settings.batch
        halving, at = Halving(min(len(events), most)), 0
        self.behind = events[0].written_at if events else None
        while at < len(events):
            part = events[at : at + min(halving.size, most)]
            posted = await self._post(part)
            if posted.accepted:
                at += len(part)
                halving.accepted()
            elif posted.refused and halving.refused(len(part)):
                continue
            elif posted.refused and (halving.proven or await self._takes_others(events, at)):
                await self._table.set_aside(self.endpoint.settings, part[0], posted.reason)
                self._log.warning("event set aside", number=part[0].id, reason=posted.reason)
                halving.set_aside()
                at += 1
            else:
                await self._note_failure(posted, events[at - 1].place if at else None)
                return False
        return True

    async def _takes_others(self, events: Sequence[EventRow], at: int) -> bool:
        """Return whether the endpoint takes another event than the one that it has refused.

        They are chosen by chance, as those beside it may be refused for the same reason, and come
        once more in their turn.
        """
        others = range(at + 1, len(events))
        for other in random.sample(others, min(_OTHER_EVENTS, len(others))):
            if (await self._post([events[other]])).accepted:
                return True
        return False

    async def _try_others(self, events: Sequence[EventRow]) -> None:
        """Post one event beside the first one, which was refused; if it is taken, the pause ends.

        Otherwise nothing changes but the pause before the next trial. Raises StoreUnavailable,
        psycopg.Error.
        """
        self._trial_pause = min(2 * self._trial_pause, _MAX_TRIAL_PAUSE_S)
        if len(events) > 1:
            posted = await self._post([random.choice(events[1:])])  # noqa: S311 - no secret
            if posted.status == _GONE:
                await self._note_failure(posted, None)
            elif not (posted.accepted or posted.refused):
                self._trial_pause = 0.0  # it is away

    async def _note_failure(self, posted: Posted, reached: str | None) -> None:
        settings = self.endpoint.settings
        self._accepted = False
        if posted.status == _GONE:
            self._log.warning("webhook suspended: it is gone", reason=posted.reason)
            await self._suspend(posted.reason, "it has answered that it is gone (410)")
            return
        self._failures += 1  # after any success it was 0
        wait = wait_after(self._failures, posted.retry_after)
        if self._failures == 1:
            self._log.warning("webhook fails", reason=posted.reason, seconds=round(wait, 1))
        self._due = time.monotonic() + wait
        if not posted.refused or posted.retry_after is not None:
            self._trial_pause = 0.0
        elif not self._trial_pause:
            self._trial_pause = _MIN_TRIAL_PAUSE_S
        failing = await self._table.failed(settings, posted.reason, wait, self._failures, reached)
        if failing >= GIVE_UP_S:
            self._log.error("webhook suspended after three days of failures", reason=posted.reason)
            await self._suspend(posted.reason, "it has failed for three days")

    async def _suspend(self, reason: str, why: str) -> None:
        settings = self.endpoint.settings
        notice = self._notice(self.endpoint, why, reason) if settings.owner else None
        try:
            await self._table.suspend(settings, reason, notice)
        except psycopg.Error as error:  # the address of the owner may not get mail
            self._log.error("no mail to the owner of a webhook", reason=faults.one_line(error))
            await self._table.suspend(settings, reason)
        self._ended = True

    async def _replay(self) -> None:
        """Post events whose replay was asked for, each alone, so that a refusal is about it.

        Raises StoreUnavailable, psycopg.Error.
        """
        settings = self.endpoint.settings
        asked = await self._table.replays(settings)
        self._replays = bool(asked)
        for event, document in asked:
            if document is None:
                await self._table.not_replayed(settings, event, "the event is not kept any more")
                continue
            posted = await self._post([EventRow("", event, datetime.now(UTC), document)])
            if posted.accepted:
                await self._table.replayed(settings, event)
            elif posted.refused:
                await self._table.not_replayed(settings, event, posted.reason)
            else:
                await self._note_failure(posted, None)
                return

    async def _post(self, events: Sequence[EventRow]) -> Posted:
        """Post events in one request, whose id is always the same for the same events."""
        settings = self.endpoint.settings
        references = [settings.secret, *filter(None, [settings.earlier_secret])]
        secrets = [self._secrets.find(each) for each in references]
        if secrets[0] is None:
            self.failed += 1
            missing = Secrets.missing(settings.secret)
            return Posted(0, f"{missing}, as queued has read it: SIGHUP after a change")
        known = [each for each in secrets if each]
        message = f"msg_{settings.id}_{events[0].id}_{events[-1].id}_{len(events)}"
        body = batch_body(events)
        async with self._slots.take(self.endpoint.customer, self.failing):
            posted = await self._connection.post(
                signed_fields(known, message, datetime.now(UTC), body), body
            )
        if posted.accepted:
            self._failures, self._due, self._trial_pause = 0, 0.0, 0.0
            self._accepted = True
            self.posted += len(events)
        else:
            self.failed += 1
        return posted


def batch_body(events: Sequence[EventRow]) -> bytes:
    """Return the body. Its time is that of the last event, so a repetition is equal."""
    written = events[-1].written_at or datetime.now(UTC)
    at = written.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    documents = ",".join(each.document or "{}" for each in events)
    return f'{{"type":"mail.events","timestamp":"{at}","data":[{documents}]}}'.encode()
