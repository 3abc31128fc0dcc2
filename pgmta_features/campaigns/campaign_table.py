"""Campaigns as an operator starts, stops and sees them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from difflib import get_close_matches
from typing import Any

from pgmta.errors import PgmtaError
from pgmta.postgres.operator import OperatorConnection
from pgmta.store.queries import feature_queries

_SQL = feature_queries("campaigns")


@dataclass(frozen=True, slots=True)
class CampaignState:
    """How far a campaign is: recipients by state. `rate` is per second, `wait` in seconds.

    `jobs` has their number by status.
    """

    id: int
    tenant: str
    name: str
    recipients: int
    unsent: int
    queued: int
    sent: int
    errored: int
    invalid: int
    unknown: int
    bounced: int
    unsubscribed: int
    complained: int
    rate: float | None
    wait: float | None
    jobs: dict[str, int]
    halted_at: datetime | None
    halted_reason: str | None
    credential: str
    created_at: datetime

    @property
    def status(self) -> str:
        """The statuses of its jobs, in a word or two."""
        if self.halted_at:
            return "halted"
        if not self.jobs:
            return "not started"
        if len(self.jobs) == 1:
            return next(iter(self.jobs))
        return ", ".join(f"{number} {status}" for status, number in sorted(self.jobs.items()))

    @property
    def ended(self) -> int:
        """Recipients that have their outcome."""
        return self.sent + self.errored + self.invalid + self.unknown

    @property
    def done(self) -> bool:
        """Whether it was started, and no job is left."""
        return bool(self.jobs) and set(self.jobs) == {"LOGGED"}


@dataclass(frozen=True, slots=True)
class Obstacles:
    """Reasons why mail of a campaign may wait.

    `hours` says where and when hours begin, the first one first. `parted` is whether the rest of
    a campaign waits for its first part, and `rest_at` when it goes, if the first part was fed.
    If that waits for the hours in `part_zone`, the rest goes after `rest_after`. `held` is the
    number of mails on hold. `user_of_credential` is another campaign, '' for one of
    another tenant that the session may not know, `worker` whether one runs,
    and `later` the number of recipients that came after the start. `words` is the reply or
    the reason with which mail `message_id` waits, and `next_attempt` its time; null: on hold.
    """

    visible_at: datetime | None
    user_of_credential: str | None
    next_at: datetime | None
    month_is_over: bool | None
    worker: bool
    later: int
    hours: list[str]
    parted: bool
    rest_at: datetime | None
    rest_after: datetime | None
    part_zone: str | None
    held: int
    message_id: int | None
    recipient: str | None
    words: str | None
    next_attempt: datetime | None

    def keep_back(self, now: datetime) -> bool:
        """Return whether the time of the campaign, its first part or its hours keep mail back."""
        begins = self.visible_at is not None and self.visible_at > now
        return begins or self.first_part_keeps_back(now) or bool(self.hours)

    def first_part_keeps_back(self, now: datetime) -> bool:
        """Return whether the rest waits for the first part, or for the time after it."""
        return self.parted and (self.rest_at is None or self.rest_at > now)


class CampaignTable:
    """Changes are noted in table `audit` under `who`.

    Methods raise psycopg.Error: functions of the database refuse what does not fit.
    """

    def __init__(self, db: OperatorConnection, who: str) -> None:
        self._db = db
        self._who = who

    async def states(
        self,
        tenant: str | None,
        name: str | None = None,
        most: int = 1000,
        before: int | None = None,
    ) -> list[CampaignState]:
        """Return how far campaigns are, the newest first; `before` is an id."""
        params = {
            "tenant": tenant, "name": name, "most": most, "failures": False, "before": before,
        }  # fmt: skip
        rows = await self._db.rows(_SQL["statistics"], params)
        for row in rows:
            del row["failures"]
        return [CampaignState(**{**row, "jobs": row["jobs"] or {}}) for row in rows]

    async def state(self, tenant: str, name: str) -> CampaignState:
        """Return how far a campaign is. Raises PgmtaError if there is none with this name."""
        found = await self.states(tenant, name)
        if not found:
            await self.find(tenant, name)
        return found[0]

    async def find(self, tenant: str, name: str) -> int:
        """Return the id of a campaign. Raises PgmtaError if there is none with this name."""
        row = await self._db.row(_SQL["find"], {"tenant": tenant, "name": name})
        if row:
            return int(row["id"])
        names = [each["name"] for each in await self._db.rows(_SQL["names"], {"tenant": tenant})]
        near = get_close_matches(name, names, 1)
        advice = f"did you mean {near[0]}?" if near else "`queuectl campaign list` has all"
        owner = f" of tenant {tenant}" if tenant else ""
        raise PgmtaError(f"there is no campaign {name}{owner}; {advice}")

    async def state_and_failures(
        self, tenant: str, name: str
    ) -> tuple[CampaignState, list[dict[str, Any]]]:
        """Return how far a campaign is, with state, class, code and number of its failures.

        Both are of one moment. Raises PgmtaError if there is none with this name.
        """
        params = {
            "tenant": tenant, "name": name, "most": 1, "failures": True, "before": None,
        }  # fmt: skip
        if (row := await self._db.row(_SQL["statistics"], params)) is None:
            await self.find(tenant, name)
            raise PgmtaError(f"the campaign {name} was made just now")
        failures = row.pop("failures") or []
        return CampaignState(**{**row, "jobs": row["jobs"] or {}}), failures

    async def templates(self, campaign: int) -> list[dict[str, Any]]:
        """Return the templates that a campaign had, the first one first."""
        return await self._db.rows(_SQL["templates"], {"campaign": campaign})

    async def lists(self, campaign: int) -> list[dict[str, Any]]:
        """Return the lists of a campaign, the first one first."""
        return await self._db.rows(_SQL["lists"], {"campaign": campaign})

    async def settings(self, campaign: int) -> dict[str, Any]:
        """Return how a campaign was made."""
        row = await self._db.row(_SQL["settings"], {"campaign": campaign})
        assert row  # noqa: S101 - for the type checker
        return row

    async def obstacles(self, campaign: int) -> Obstacles:
        """Return reasons why mail of a campaign may wait."""
        row = await self._db.row(_SQL["obstacles"], {"campaign": campaign})
        assert row  # noqa: S101 - for the type checker
        return Obstacles(**row)

    async def recipient(self, campaign: int, recipient: str) -> dict[str, Any] | None:
        """Return number, state and outcome of the recipient with an address, in any spelling."""
        params = {"campaign": campaign, "recipient": recipient}
        return await self._db.row(_SQL["recipient_by_address"], params)

    async def jobs(self, campaign: int | None, most: int = 1000) -> list[dict[str, Any]]:
        """Return the jobs of a campaign, or those of all that are not done."""
        return await self._db.rows(_SQL["jobs"], {"campaign": campaign, "most": most})

    async def start(
        self,
        campaign: int,
        rate: float | None,
        jobs: int,
        part: Decimal | None = None,
        pause: float | None = None,
    ) -> list[int]:
        """Make the jobs of a campaign; return their ids.

        `part`, a share below 1 or a number, goes first, and the rest `pause` seconds after it.
        """
        params = {"campaign": campaign, "rate": rate, "jobs": jobs, "part": part, "pause": pause}
        async with self._db.transaction():
            found = [row["job"] for row in await self._db.rows(_SQL["start"], params)]
            details: dict[str, Any] = {"rate": rate, "jobs": len(found)}
            if part is not None:
                details |= {"part": str(part), "pause": pause}
            await self._db.audit(self._who, "campaign start", str(campaign), details, len(found))
        return found

    async def stop(self, campaign: int) -> int:
        """Stop the jobs of a campaign; return how many."""
        return await self._change("stop", campaign, {})

    async def resume(self, campaign: int, *, halted: bool) -> int:
        """Go on with the jobs of a campaign; return how many."""
        return await self._change("resume", campaign, {"halted": halted})

    async def retry(self, campaign: int, *, unknown: bool, halted: bool) -> int:
        """Send again what failed; return the number of jobs."""
        return await self._change("retry", campaign, {"unknown": unknown, "halted": halted})

    async def suppressed(self, *, campaign: int | None = None, job: int | None = None,
                   unknown: bool) -> int:  # fmt: skip
        """Return how many of the recipients that a retry takes are suppressed, and stay unsent."""
        params = {"campaign": campaign, "job": job, "unknown": unknown}
        row = await self._db.row(_SQL["suppressed"], params)
        return int(row["number"]) if row else 0

    async def delete(self, campaign: int) -> int:
        """Delete a campaign; return the number of its recipients."""
        return await self._change("delete", campaign, {})

    async def remove(
        self, campaign: int, recipients: list[str] | None, number: int | None
    ) -> tuple[int, int]:
        """Take recipients, or those of a list, out; return how many, and how many stay."""
        params = {"campaign": campaign, "recipients": recipients, "list": number}
        async with self._db.transaction():
            row = await self._db.row(_SQL["remove"], params)
            assert row  # noqa: S101 - for the type checker
            # without the addresses: an entry of the audit stays
            details = {"list": number} if number is not None else {"kept": row["kept"]}
            await self._db.audit(
                self._who, "campaign remove", str(campaign), details, row["removed"]
            )
        return row["removed"], row["kept"]

    async def copy(self, campaign: int, given: Mapping[str, Any]) -> None:
        """Make a campaign with the arguments of campaign_copy()."""
        async with self._db.transaction():
            row = await self._db.row(_SQL["copy_campaign"], {"campaign": campaign, **given})
            assert row  # noqa: S101 - for the type checker
            details = {"name": given["name"], "states": given["states"], "id": row["id"]}
            await self._db.audit(self._who, "campaign copy", str(campaign), details, 1)

    async def _change(self, name: str, campaign: int, details: dict[str, Any]) -> int:
        async with self._db.transaction():
            row = await self._db.row(_SQL[name], {"campaign": campaign, **details})
            assert row  # noqa: S101 - for the type checker
            number = int(row["changed"])
            await self._db.audit(self._who, f"campaign {name}", str(campaign), details, number)
        return number

    async def stop_job(self, job: int) -> bool:
        """Stop a job; return whether that changed anything."""
        return await self._change_job("stop_job", job, {})

    async def resume_job(self, job: int) -> bool:
        """Go on with a job; return whether that changed anything."""
        return await self._change_job("resume_job", job, {})

    async def retry_job(self, job: int, *, unknown: bool) -> bool:
        """Send again what failed of a job; return whether that changed anything."""
        return await self._change_job("retry_job", job, {"unknown": unknown})

    async def _change_job(self, name: str, job: int, details: dict[str, Any]) -> bool:
        async with self._db.transaction():
            row = await self._db.row(_SQL[name], {"job": job, **details})
            assert row  # noqa: S101 - for the type checker
            await self._db.audit(
                self._who, name.replace("_", " "), str(job), details, int(row["changed"])
            )
        return bool(row["changed"])
