"""The recipients of a campaign as an operator imports, tries and exports them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import psycopg
from psycopg import sql

from pgmta.compose.template import TemplateSource
from pgmta.errors import PgmtaError
from pgmta.postgres.operator import OperatorLink
from pgmta.postgres.role import require_temporary
from pgmta.store.queries import feature_queries

_SQL = feature_queries("campaigns")
_ROWS_PER_STATEMENT = 50_000
_COPY_ROWS, _COPY_CHARACTERS = 5000, 1 << 22  # the largest COPY: rows, and characters of words
_CURSOR_ROWS = 1000

OUTCOMES = ("unsent", "queued", "deferred", "sent", "failed", "invalid", "unknown")
"""The states of a recipient."""

_UTC = "to_char({} AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')"
_FIELDS: dict[str, str | None] = {  # None: the column itself
    "number": None, "recipient": None, "state": None, "bounced": None,
    "sent_at": _UTC, "answered_at": _UTC, "error_code": None, "error_sub_type": None,
    "message_id": None,
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
    """A row whose mailbox is there before, in the row `first`.

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


class ListTable(OperatorLink):
    """Works over a separate connection. Imports are noted in table `audit` under `who`.

    Raises StoreUnavailable when it opens, and psycopg.Error.
    """

    def __init__(self, uri: str, who: str) -> None:
        super().__init__(uri)
        self._who = who

    def campaign(self, campaign: int) -> CampaignTemplate:
        """Return the campaign with this id."""
        row = self._db.execute(_SQL["campaign"], {"campaign": campaign}).fetchone()
        if row is None:
            raise psycopg.errors.NoDataFound(f"there is no campaign {campaign}")
        source = TemplateSource(
            sender=row["sender"], from_=row["from_field"], reply_to=row["reply_to"],
            subject=row["subject"], body=row["body"], html=row["html"], headers=row["headers"],
        )  # fmt: skip
        return CampaignTemplate(row, source)

    @contextmanager
    def creating(self, given: Mapping[str, Any]) -> Iterator[CampaignTemplate]:
        """Make a campaign with the arguments of campaign_create(). An error undoes it."""
        with self._db.transaction():
            row = self._db.execute(_SQL["create"], given).fetchone()
            assert row  # noqa: S101 - for the type checker
            made = self.campaign(row["id"])
            yield made
            details = {"tenant": given["tenant"], "template": made.row["template"]}
            self._audit(self._who, "campaign create", given["name"], details, 1)

    def rated_credentials(self) -> list[str]:
        """Return the credentials that have a budget."""
        return [row["credential"] for row in self._db.execute(_SQL["rated"])]

    def worker_runs(self) -> bool:
        """Return whether a worker that delivers runs."""
        row = self._db.execute(_SQL["worker"]).fetchone()
        return bool(row and row["runs"])

    def importing(self, campaign: CampaignTemplate) -> ListImport:
        """Begin an import."""
        return ListImport(self._db, campaign.row)

    def note_import(self, campaign: int, details: dict[str, Any], number: int) -> None:
        """Note an import in table `audit`."""
        self._audit(self._who, "campaign import", str(campaign), details, number)

    def recipient(self, campaign: int, number: int) -> Recipient | None:
        """Return the recipient with this number."""
        params = {"campaign": campaign, "number": number}
        row = self._db.execute(_SQL["recipient_by_number"], params).fetchone()
        return Recipient(**row) if row else None

    def last(self, campaign: int) -> int:
        """Return the highest number of a recipient; 0 if there is none."""
        row = self._db.execute(_SQL["last"], {"campaign": campaign}).fetchone()
        return int(row["number"]) if row else 0

    def test(self, campaign: int, recipient: str, words: Mapping[str, Any]) -> int:
        """Put a test mail into the queue; return the id of its message."""
        params = {"campaign": campaign, "recipient": recipient, "params": json.dumps(dict(words))}
        with self._db.transaction():
            row = self._db.execute(_SQL["test"], params).fetchone()
            assert row  # noqa: S101 - for the type checker
            self._audit(self._who, "campaign test", str(campaign), {"message": row["id"]}, 1)
        return int(row["id"])

    def export(
        self,
        campaign: int,
        states: Iterable[str] = (),
        words: Iterable[str] = (),
        *,
        as_json: bool = False,
        spreadsheet: bool = False,
    ) -> Iterator[bytes]:
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
        with self._db.cursor() as cursor, cursor.copy(statement) as copy:
            for block in copy:
                yield bytes(block)


class ListImport:
    """An import: `add` and `end_rows`, then within `transaction` the others in their order.

    Rows wait in a temporary table, which goes with the connection. Each part of them is a commit.
    So a slow source keeps no snapshot, which would hold up the clean-up of the queue.
    """

    def __init__(self, db: psycopg.Connection[dict[str, Any]], campaign: Mapping[str, Any]) -> None:
        self._db = db
        self._campaign = campaign
        self._base = 0  # the highest number of a recipient before this import
        self._last = 0  # number of the last row of the file
        self._part: list[tuple[int, str, str, str]] = []
        self._size = 0  # characters of the words so far
        require_temporary(db)
        self._db.execute(_SQL["table"])

    def add(self, place: int, row: tuple[str, str, str]) -> None:
        """Add a row: mailbox, domain, words as JSON. Places have to increase."""
        self._part.append((place, *row))
        self._size += len(row[2])
        if len(self._part) >= _COPY_ROWS or self._size >= _COPY_CHARACTERS:
            self.end_rows()

    def end_rows(self) -> None:
        """Send the rows that wait."""
        if not self._part:
            return
        with self._db.cursor() as cursor, cursor.copy(_SQL["copy"]) as copy:
            for row in self._part:
                copy.write_row(row)
        self._last = self._part[-1][0]
        self._part.clear()
        self._size = 0

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Add recipients to the campaign within one transaction, which an error undoes."""
        try:
            with self._db.transaction():
                yield
        except psycopg.errors.UniqueViolation:  # another import has taken the same numbers
            raise PgmtaError(
                "another import into the campaign has ended meanwhile: nothing was imported, run "
                "it again"
            ) from None

    def of_other_kind(self) -> Iterator[OtherKind]:
        """Leave out each row whose kind the campaign does not have, and yield these rows."""
        found = self._db.execute(_SQL["other_kind"], {"campaign": self._campaign["id"]})
        yield from sorted(OtherKind(**row) for row in found)

    def duplicates(self) -> Iterator[Duplicate]:
        """Leave out each row whose mailbox is there before, and yield these rows."""
        campaign = self._campaign["id"]
        row = self._db.execute(_SQL["begin"], {"campaign": campaign}).fetchone()
        self._base = int(row["base"]) if row else 0
        places = {"base": sql.Literal(self._base), "campaign": sql.Literal(campaign)}
        self._db.execute(_SQL["twice"].format(**places))
        with self._db.cursor(name="duplicates") as cursor:
            cursor.itersize = _CURSOR_ROWS
            cursor.execute(_SQL["duplicates"])
            for each in cursor:
                yield Duplicate(**each)

    def store(self) -> Iterator[tuple[int, int]]:
        """Add the recipients; after each statement yield their number, and that of suppressed ones.

        From the first statement on a worker may have to wait for the end of the transaction. So a
        campaign that has recipients, and maybe runs, gets all by one statement.
        """
        self._db.execute(_SQL["index"])
        self._db.execute(_SQL["analyze"])
        step = self._last if self._base else _ROWS_PER_STATEMENT
        added = suppressed = 0
        for after in range(0, self._last, max(step, 1)):
            params = {
                "campaign": self._campaign["id"], "tenant": self._campaign["tenant"],
                "scope": self._campaign["scope"], "base": self._base + added,
                "after": after, "last": after + step,
            }  # fmt: skip
            row = self._db.execute(_SQL["store"], params).fetchone()
            assert row  # noqa: S101 - for the type checker
            added += row["added"]
            suppressed += row["suppressed"]
            yield added, suppressed


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
