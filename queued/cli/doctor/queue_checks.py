"""Checks of the queue: daemons, workers, rules, partitions, and mail that does not move."""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator

from pgmta.command import age
from pgmta.postgres.operator import connected
from pgmta.store.admin.examination import Examination
from pgmta.store.admin.upkeep import ORPHAN_AGE_S
from pgmta.store.changes.overview import Overview
from pgmta.store.queue import partitions
from pgmta.store.queue.reading import Fault
from pgmta.store.schema import migrations, mismatch
from queued.cli.commands.workers import NO_WORKER, look_at_workers
from queued.cli.doctor.diagnosis import Check, Diagnosis, error, warning

_LATE_S = 300.0  # a row that is due for longer is a finding
_MIN_ATTEMPTS = 20  # fewer attempts say little
_NEWLY_HELD_S = 3600.0  # mail that came and was put on hold in this time is a finding

OF_HEARTBEATS = ("daemons", "workers")
"""Checks that are false while the database takes no writes, and so no heartbeats."""


class QueueChecks:
    """Checks over one connection. Each method raises psycopg.Error, PgmtaError."""

    def __init__(self, examination: Examination, uri: str, *, smtpd: bool) -> None:
        self._ask = examination.ask
        self._uri = uri
        self._needed = ("smtpd", "queued") if smtpd else ("queued",)

    def all(self) -> dict[str, Check]:
        """Return the checks by name."""
        return {
            "schema": self.schema,
            "daemons": self.daemons,
            "workers": self.workers,
            "partitions": self.partitions,
            "due mail": self.due_mail,
            "hold": self.held,
            "outcomes": self.outcomes,
            "orphans": self.orphans,
        }

    async def schema(self) -> AsyncIterator[Diagnosis]:
        """Compare the schema of the database with this program, and with the daemons."""
        known = list(migrations())
        there = {row["name"] for row in await self._ask("schema")}
        if reason := mismatch(known, there):
            remedy = "run `queuectl database migrate`, or the version that fits"
            yield error("schema", reason, remedy)
        for row in await self._ask("daemons"):
            if row["alive"] and row["schema"] not in there:
                yield error(
                    "schema",
                    f"{row['program']} {row['version']} on {row['host']} (pid {row['pid']}) knows "
                    f"{row['schema']}, which the database does not have",
                    "run `queuectl database migrate`, or restart that process",
                )

    async def daemons(self) -> AsyncIterator[Diagnosis]:
        """Look whether both daemons run, and whether one stopped without a word."""
        rows = await self._ask("daemons")
        for program in self._needed:
            if not any(row["program"] == program and row["alive"] for row in rows):
                yield error(
                    "daemons", f"no {program} runs", f"start {program}; its log says why it ended"
                )
        for row in rows:
            if not row["missed"]:
                continue
            yield warning(
                "daemons",
                f"{row['program']} on {row['host']} (pid {row['pid']}) has sent "
                "no heartbeat for a minute",
                "look whether it runs and reaches PostgreSQL; if it is gone, nothing is to be done",
            )

    async def workers(self) -> AsyncIterator[Diagnosis]:
        """Look for rows that no worker takes, and for conditions that fail."""
        async with connected(self._uri) as db:
            overview = Overview(db)
            _, rules, _, warnings = await look_at_workers(overview)
        faults = {str(each): each for each in overview.faults}
        of_operators = {f"rule {rule['name']}" for rule in rules if rule["origin"] == "operator"}
        for text in warnings:
            remedy = "`queuectl workers` shows what each one takes"
            if text == NO_WORKER:
                remedy = "start queued; its log says why it ended"
            if fault := faults.get(text):
                remedy = _mended(fault, standing=fault.owner in of_operators)
            yield error("workers", text, remedy)

    async def partitions(self) -> AsyncIterator[Diagnosis]:
        """Look for mistakes in the partitions of the queue and of the log."""
        async with partitions.opened(self._uri) as db:
            found = await partitions.check(db, None)
        for each in found:
            if each.severity == "problem":
                yield error("partitions", f"{each.object}: {each.finding}", each.remedy)

    async def due_mail(self) -> AsyncIterator[Diagnosis]:
        """Look how long mail waits beyond its time."""
        seconds = (await self._ask("oldest_due"))[0]["seconds"]
        if seconds is not None and seconds > _LATE_S:
            yield error(
                "due mail",
                f"a row is due for {age(seconds)}, and no worker has taken it",
                "`queuectl workers`; `queuectl list --age '>5m' --limit 1`, `queuectl explain ID`",
            )

    async def held(self) -> AsyncIterator[Diagnosis]:
        """Look for mail that stays on hold until somebody releases it, by its reason."""
        for row in await self._ask("held", least=_NEWLY_HELD_S):
            many = "a row" if row["number"] == 1 else f"{row['number']} rows"
            yield warning(
                "hold",
                f"{many} on hold by {row['by'] or 'nobody'}, the oldest for {age(row['seconds'])}: "
                f"{row['reason'] or 'no reason'}",
                "`queuectl list --count --by hold_reason --status hold` has all reasons, and "
                "`queuectl list --status hold` the mail; `queuectl release`, `queuectl bounce` or "
                "`queuectl delete` ends it",
            )

    async def outcomes(self) -> AsyncIterator[Diagnosis]:
        """Look whether mail is delivered at all."""
        row = (await self._ask("outcomes"))[0]
        if row["attempts"] >= _MIN_ATTEMPTS and row["delivered"] * 10 < row["attempts"]:
            yield error(
                "outcomes",
                f"of {row['attempts']} attempts in half an hour {row['delivered']} delivered",
                "`queuectl list --count --by class --since 30m`, then `queuectl route DOMAIN`",
            )
        if row["unknown"] >= _MIN_ATTEMPTS and row["unknown"] * 20 > row["attempts"]:
            yield warning(
                "outcomes",
                f"{row['unknown']} attempts in half an hour ended as unknown: mail may come twice",
                "SELECT * FROM pgmta.duplicates; has the reasons",
            )

    async def orphans(self) -> AsyncIterator[Diagnosis]:
        """Look for bodies that no queued removes."""
        number = (await self._ask("orphans", age=ORPHAN_AGE_S))[0]["number"]
        if number:
            many = "1000 or more" if number >= 1000 else str(number)
            yield warning(
                "orphans",
                f"{many} bodies have no row, and no queued has removed them",
                "start queued; its duty `orphans` runs each hour",
            )


def _mended(fault: Fault, *, standing: bool) -> str:
    """Return the commands that show a condition that fails, and those that replace it."""
    name = shlex.quote(fault.owner.partition(" ")[2])
    seen = f"`queuectl explain {fault.message}` shows the error; " if fault.message else ""
    if standing:
        return (
            f"{seen}`queuectl rule list` shows the condition; "
            f"`queuectl rule remove {name} --release`, then `queuectl rule add {name}` with "
            "--where 'CASE WHEN ... THEN ... ELSE false END'"
        )
    return (
        f"{seen}mend `where` of the worker {name} in queued.yaml (CASE WHEN ... THEN ... "
        "ELSE false END); `queued check`, then `systemctl restart queued`"
    )
