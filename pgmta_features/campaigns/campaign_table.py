"""Campaigns as an operator starts, stops and sees them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from typing import Any

from pgmta.errors import PgmtaError
from pgmta.postgres.operator import OperatorLink
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
    rate: float | None
    wait: float | None
    jobs: dict[str, int]
    halted_at: datetime | None
    halted_reason: str | None
    credential: str
    created_at: datetime

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

    `user_of_credential` is another campaign, `worker` whether one runs, and `later` the number of
    recipients that came after the start. `words` is the reply or the reason with which mail
    `message_id` waits, and `next_attempt` its time; null: on hold.
    """

    visible_at: datetime | None
    user_of_credential: str | None
    next_at: datetime | None
    month_is_over: bool | None
    worker: bool
    later: int
    message_id: int | None
    recipient: str | None
    words: str | None
    next_attempt: datetime | None


class CampaignTable(OperatorLink):
    """Works over a separate connection. Changes are noted in table `audit` under `who`.

    Raises StoreUnavailable when it opens, and psycopg.Error: functions of the database refuse what
    does not fit.
    """

    def __init__(self, uri: str, who: str) -> None:
        super().__init__(uri)
        self._who = who

    def states(
        self, tenant: str | None, name: str | None = None, most: int = 1000
    ) -> list[CampaignState]:
        """Return how far campaigns are, the newest first."""
        params = {"tenant": tenant, "name": name, "most": most}
        return [
            CampaignState(**{**row, "jobs": row["jobs"] or {}})
            for row in self._db.execute(_SQL["statistics"], params)
        ]

    def state(self, tenant: str, name: str) -> CampaignState:
        """Return how far a campaign is. Raises PgmtaError if there is none with this name."""
        found = self.states(tenant, name)
        if not found:
            self.find(tenant, name)
        return found[0]

    def find(self, tenant: str, name: str) -> int:
        """Return the id of a campaign. Raises PgmtaError if there is none with this name."""
        row = self._db.execute(_SQL["find"], {"tenant": tenant, "name": name}).fetchone()
        if row:
            return int(row["id"])
        names = [each["name"] for each in self._db.execute(_SQL["names"], {"tenant": tenant})]
        near = get_close_matches(name, names, 1)
        advice = f"did you mean {near[0]}?" if near else "`queuectl campaign list` has all"
        owner = f" of tenant {tenant}" if tenant else ""
        raise PgmtaError(f"there is no campaign {name}{owner}; {advice}")

    def obstacles(self, campaign: int) -> Obstacles:
        """Return reasons why mail of a campaign may wait."""
        row = self._db.execute(_SQL["obstacles"], {"campaign": campaign}).fetchone()
        assert row  # noqa: S101 - for the type checker
        return Obstacles(**row)

    def recipient(self, campaign: int, recipient: str) -> dict[str, Any] | None:
        """Return the number, state and outcome of the recipient with an address, in any case."""
        params = {"campaign": campaign, "recipient": recipient}
        return self._db.execute(_SQL["recipient_by_address"], params).fetchone()

    def jobs(self, campaign: int | None, most: int = 1000) -> list[dict[str, Any]]:
        """Return the jobs of a campaign, or those of all that are not done."""
        return self._db.execute(_SQL["jobs"], {"campaign": campaign, "most": most}).fetchall()

    def start(self, campaign: int, rate: float | None, jobs: int) -> list[int]:
        """Make the jobs of a campaign; return their ids."""
        params = {"campaign": campaign, "rate": rate, "jobs": jobs}
        with self._db.transaction():
            found = [row["job"] for row in self._db.execute(_SQL["start"], params)]
            details = {"rate": rate, "jobs": len(found)}
            self._audit(self._who, "campaign start", str(campaign), details, len(found))
        return found

    def stop(self, campaign: int) -> int:
        """Stop the jobs of a campaign; return how many."""
        return self._change("stop", campaign, {})

    def resume(self, campaign: int, *, halted: bool) -> int:
        """Go on with the jobs of a campaign; return how many."""
        return self._change("resume", campaign, {"halted": halted})

    def retry(self, campaign: int, *, unknown: bool, halted: bool) -> int:
        """Send again what failed; return the number of jobs."""
        return self._change("retry", campaign, {"unknown": unknown, "halted": halted})

    def suppressed(self, *, campaign: int | None = None, job: int | None = None,
                   unknown: bool) -> int:  # fmt: skip
        """Return how many of the recipients that a retry takes are suppressed, and stay unsent."""
        params = {"campaign": campaign, "job": job, "unknown": unknown}
        row = self._db.execute(_SQL["suppressed"], params).fetchone()
        return int(row["number"]) if row else 0

    def delete(self, campaign: int) -> int:
        """Delete a campaign; return the number of its recipients."""
        return self._change("delete", campaign, {})

    def _change(self, name: str, campaign: int, details: dict[str, Any]) -> int:
        with self._db.transaction():
            row = self._db.execute(_SQL[name], {"campaign": campaign, **details}).fetchone()
            assert row  # noqa: S101 - for the type checker
            number = int(row["changed"])
            self._audit(self._who, f"campaign {name}", str(campaign), details, number)
        return number

    def stop_job(self, job: int) -> bool:
        """Stop a job; return whether that changed anything."""
        return self._change_job("stop_job", job, {})

    def resume_job(self, job: int) -> bool:
        """Go on with a job; return whether that changed anything."""
        return self._change_job("resume_job", job, {})

    def retry_job(self, job: int, *, unknown: bool) -> bool:
        """Send again what failed of a job; return whether that changed anything."""
        return self._change_job("retry_job", job, {"unknown": unknown})

    def _change_job(self, name: str, job: int, details: dict[str, Any]) -> bool:
        with self._db.transaction():
            row = self._db.execute(_SQL[name], {"job": job, **details}).fetchone()
            assert row  # noqa: S101 - for the type checker
            self._audit(self._who, name.replace("_", " "), str(job), details, int(row["changed"]))
        return bool(row["changed"])
