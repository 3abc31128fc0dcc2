"""The recipients of a campaign as an operator imports, tries and exports them."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import psycopg
from psycopg import sql

from pgmta.compose.template import TemplateSource
from pgmta.errors import PgmtaError
from pgmta.postgres.operator import OperatorConnection
from pgmta.postgres.role import require_temporary
from pgmta.store.queries import feature_queries
from pgmta_features.campaigns.lists.time_zones import TimeZones

_SQL = feature_queries("campaigns")
_ROWS_PER_STATEMENT = 50_000
_COPY_ROWS, _COPY_CHARACTERS = 5000, 1 << 22  # the largest COPY: rows, and characters of words
_CURSOR_ROWS = 1000

OUTCOMES = ("unsent", "queued", "deferred", "sent", "failed", "invalid", "unknown")
"""The states of a recipient."""

_UTC = "to_char({} AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')"
_FIELDS: dict[str, str | None] = {  # None: the column itself
    "number": None, "recipient": None, "state": None, "bounced": None,
    "unsubscribed": None, "complained": None,
    "sent_at": _UTC, "answered_at": _UTC, "error_code": None, "error_sub_type": None,
    "message_id": "{}::text", "template": None, "version": None,
}  # fmt: skip
_TEXTS = ("recipient", "error_code", "error_sub_type")
_NO_FORMULA = "CASE WHEN {0} ~ '^[=+\\-@\\t\\r\\n]' THEN '''' || {0} ELSE {0} END"


@dataclass(frozen=True, slots=True)
class CampaignTemplate:
    """A campaign, and its version of a template."""

    row: Mapping[str, Any]
    source: TemplateSource


class Recipient(NamedTuple):
    """A recipient, and its words."""

    number: int
    recipient: str
    params: dict[str, Any]


class Duplicate(NamedTuple):
    """A row whose mailbox is also in the earlier row `first`.

    If that is below 0, the campaign has the mailbox by an earlier import.
    """

    place: int
    recipient: str
    first: int


class OtherKind(NamedTuple):
    """A row with a mailbox, if the campaign goes to telephone numbers, or the other way round."""

    place: int
    recipient: str
    problem: str


class ListTable:
    """Imports are noted in table `audit` under `who`. Methods raise psycopg.Error."""

    def __init__(self, db: OperatorConnection, who: str) -> None:
        self._db = db
        self._who = who

    async def campaign(self, campaign: int) -> CampaignTemplate:
        """Return the campaign with this id."""
        row = await self._db.row(_SQL["campaign"], {"campaign": campaign})
        if row is None:
            raise psycopg.errors.NoDataFound(f"there is no campaign {campaign}")
        source = TemplateSource(
            sender=row["sender"], from_=row["from_field"], reply_to=row["reply_to"],
            subject=row["subject"], body=row["body"], html=row["html"], headers=row["headers"],
        )  # fmt: skip
        return CampaignTemplate(row, source)

    @asynccontextmanager
    async def creating(self, given: Mapping[str, Any]) -> AsyncIterator[CampaignTemplate]:
        """Make a campaign with the arguments of campaign_create(). An error undoes it."""
        async with self._db.transaction():
            row = await self._db.row(_SQL["create"], given)
            assert row  # noqa: S101 - for the type checker
            made = await self.campaign(row["id"])
            yield made
            details = {"tenant": given["tenant"], "template": made.row["template"]}
            await self._db.audit(self._who, "campaign create", given["name"], details, 1)

    @asynccontextmanager
    async def exchanging(
        self, campaign: int, given: Mapping[str, Any]
    ) -> AsyncIterator[tuple[CampaignTemplate, int]]:
        """Give a campaign another template; yield it, and how many are unsent. An error undoes it.

        `given` are arguments of campaign_exchange().
        """
        async with self._db.transaction():
            row = await self._db.row(_SQL["exchange"], {"campaign": campaign, **given})
            assert row  # noqa: S101 - for the type checker
            found = await self.campaign(campaign)
            yield found, row["changed"]
            details = {**given, "version": found.row["version"]}
            await self._db.audit(
                self._who, "campaign template", str(campaign), details, row["changed"]
            )

    async def rated_credentials(self) -> list[str]:
        """Return the credentials that have a budget."""
        return [row["credential"] for row in await self._db.rows(_SQL["rated"])]

    async def worker_runs(self) -> bool:
        """Return whether a worker that delivers runs."""
        row = await self._db.row(_SQL["worker"])
        return bool(row and row["runs"])

    async def zones(self, campaign: CampaignTemplate) -> TimeZones | None:
        """Return the time zones that a list may have; None if the campaign has no column."""
        if (column := campaign.row["zone_column"]) is None:
            return None
        names = [row["name"] for row in await self._db.rows(_SQL["zones"])]
        return TimeZones(column, names, campaign.row["zone"])

    async def importing(self, campaign: CampaignTemplate) -> ListImport:
        """Begin an import."""
        await require_temporary(self._db)
        await self._db.execute(_SQL["table"])
        return ListImport(self._db, campaign.row)

    async def note_import(self, campaign: int, details: dict[str, Any], number: int) -> None:
        """Note an import in table `audit`."""
        await self._db.audit(self._who, "campaign import", str(campaign), details, number)

    async def recipient(self, campaign: int, number: int) -> Recipient | None:
        """Return the recipient with this number."""
        params = {"campaign": campaign, "number": number}
        row = await self._db.row(_SQL["recipient_by_number"], params)
        return Recipient(**row) if row else None

    async def recipient_from(self, campaign: int, number: int) -> Recipient | None:
        """Return the first recipient with this number or a higher one."""
        params = {"campaign": campaign, "number": number}
        row = await self._db.row(_SQL["recipient_from_number"], params)
        return Recipient(**row) if row else None

    async def recipient_with(self, campaign: int, address: str) -> Recipient | None:
        """Return the recipient with an address, whose domain is in A-labels."""
        params = {"campaign": campaign, "recipient": address}
        row = await self._db.row(_SQL["recipient_with_address"], params)
        return Recipient(**row) if row else None

    async def last(self, campaign: int) -> int:
        """Return the highest number of a recipient; 0 if there is none."""
        row = await self._db.row(_SQL["last"], {"campaign": campaign})
        return int(row["number"]) if row else 0

    async def test(self, campaign: int, recipient: str, words: Mapping[str, Any]) -> int:
        """Put a test mail into the queue; return the id of its message."""
        params = {"campaign": campaign, "recipient": recipient, "params": json.dumps(dict(words))}
        async with self._db.transaction():
            row = await self._db.row(_SQL["test"], params)
            assert row  # noqa: S101 - for the type checker
            await self._db.audit(
                self._who, "campaign test", str(campaign), {"message": row["id"]}, 1
            )
        return int(row["id"])

    async def export(
        self,
        campaign: int,
        states: Iterable[str] = (),
        words: Iterable[str] = (),
        *,
        as_json: bool = False,
        spreadsheet: bool = False,
    ) -> AsyncGenerator[bytes]:
        """Yield the recipients in these states, or all, as CSV with a header or as lines of JSON.

        With `words` they have these values too. For a `spreadsheet` no cell begins a formula.
        """
        columns = [_column(name, of, spreadsheet) for name, of in _FIELDS.items()]
        for word in words:
            value = sql.SQL("(params ->> {})").format(word)
            columns.append(_named(_safe(value) if spreadsheet else value, f"word_{word}"))
        chosen = list(states)
        condition = (
            sql.SQL("state = ANY ({})").format(chosen) if chosen else sql.SQL("true")
        )  # fmt: skip
        statement = _SQL["json" if as_json else "csv"].format(
            columns=sql.SQL(", ").join(columns), campaign=sql.Literal(campaign), chosen=condition
        )
        async with self._db.cursor() as cursor, cursor.copy(statement) as copy:
            async for block in copy:
                yield bytes(block)


class ListImport:
    """An import: `add` and `send_rows`, then within `transaction` the others in their order.

    Rows wait in a temporary table, which goes with the connection. Each part of them is a commit.
    So a slow source keeps no snapshot, which would hold up the clean-up of the queue.
    """

    def __init__(self, db: OperatorConnection, campaign: Mapping[str, Any]) -> None:
        self._db = db
        self._campaign = campaign
        self._base = 0  # the highest number of a recipient before this import
        self._last = 0  # number of the last row of the file
        self._part: list[tuple[int, str, str, str, str | None]] = []
        self._size = 0  # characters of the words so far

    def add(self, place: int, row: tuple[str, str, str, str | None]) -> bool:
        """Add a row: mailbox, domain, words as JSON, time zone. Places have to increase.

        If it returns True, `send_rows` has to be next.
        """
        self._part.append((place, *row))
        self._size += len(row[2])
        return len(self._part) >= _COPY_ROWS or self._size >= _COPY_CHARACTERS

    async def send_rows(self) -> None:
        """Send the rows that wait."""
        if not self._part:
            return
        async with self._db.cursor() as cursor, cursor.copy(_SQL["copy"]) as copy:
            for row in self._part:
                await copy.write_row(row)
        self._last = self._part[-1][0]
        self._part.clear()
        self._size = 0

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """Add recipients to the campaign within one transaction, which an error undoes."""
        try:
            async with self._db.transaction():
                yield
        except psycopg.errors.UniqueViolation:  # another import has taken the same numbers
            raise PgmtaError(
                "another import into the campaign has ended meanwhile: nothing was imported, run "
                "it again"
            ) from None

    async def of_other_kind(self) -> list[OtherKind]:
        """Leave out each row whose kind the campaign does not have, and return these rows."""
        found = await self._db.rows(_SQL["other_kind"], {"campaign": self._campaign["id"]})
        return sorted(OtherKind(**row) for row in found)

    async def duplicates(self) -> AsyncIterator[Duplicate]:
        """Leave out each row whose mailbox an earlier row has, and yield these rows."""
        campaign = self._campaign["id"]
        row = await self._db.row(_SQL["begin"], {"campaign": campaign})
        self._base = int(row["base"]) if row else 0
        row = await self._db.row(_SQL["checked"], {"campaign": campaign})
        if row is None or row["template_id"] != self._campaign["template_id"]:
            raise PgmtaError("the template of the campaign was exchanged meanwhile: nothing was "
                             "imported, run it again")  # fmt: skip
        places = {"base": sql.Literal(self._base), "campaign": sql.Literal(campaign)}
        await self._db.execute(_SQL["twice"].format(**places))
        async with self._db.cursor(name="duplicates") as cursor:
            cursor.itersize = _CURSOR_ROWS
            await cursor.execute(_SQL["duplicates"])
            async for each in cursor:
                yield Duplicate(**each)

    async def store(self) -> AsyncIterator[tuple[int, int]]:
        """Add the recipients; after each statement yield their number, and that of suppressed ones.

        From the first statement on a worker may have to wait for the end of the transaction. So a
        campaign that has recipients, and maybe runs, gets all by one statement.
        """
        await self._db.execute(_SQL["index"])
        await self._db.execute(_SQL["analyze"])
        step = self._last if self._base else _ROWS_PER_STATEMENT
        added = suppressed = 0
        for after in range(0, self._last, max(step, 1)):
            params = {
                "campaign": self._campaign["id"], "tenant": self._campaign["tenant"],
                "scope": self._campaign["scope"], "base": self._base + added,
                "after": after, "last": after + step,
            }  # fmt: skip
            row = await self._db.row(_SQL["store"], params)
            assert row  # noqa: S101 - for the type checker
            added += row["added"]
            suppressed += row["suppressed"]
            yield added, suppressed

    async def note(self, name: str) -> None:
        """Note the recipients that were stored as a list with this name."""
        params = {"campaign": self._campaign["id"], "name": name, "first": self._base + 1}
        await self._db.row(_SQL["note_list"], params)


def _column(name: str, form: str | None, spreadsheet: bool) -> sql.Composable:
    column: sql.Composable = sql.Identifier(name)
    if form:
        column = sql.SQL(form).format(column)
    elif spreadsheet and name in _TEXTS:
        column = _safe(column)
    return _named(column, name)


def _safe(value: sql.Composable) -> sql.Composable:
    """Return a text that no spreadsheet takes for a formula (CWE-1236)."""
    return sql.SQL(_NO_FORMULA).format(value)


def _named(value: sql.Composable, name: str) -> sql.Composable:
    return sql.SQL("{} AS {}").format(value, sql.Identifier(name))
