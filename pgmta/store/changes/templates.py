"""The templates as an operator stores and lists them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from pgmta.compose.template import Template, TemplateSource
from pgmta.errors import PgmtaError, SubmissionError
from pgmta.postgres.operator import OperatorConnection
from pgmta.store.changes.sql_interface import refused
from pgmta.store.queries import queries

_SQL = queries("templates")


@dataclass(frozen=True, slots=True)
class NamedTemplate:
    """A template that is to be stored: its name, its tenant, and itself before and after compiling.

    `compile_template` has checked it.
    """

    tenant: str
    name: str
    source: TemplateSource
    template: Template

    @property
    def words(self) -> dict[str, list[str]]:
        """The places of each word, as the database has them."""
        return {word: sorted(places) for word, places in self.template.words.items()}


@dataclass(frozen=True, slots=True)
class StoredTemplate:
    """A version of a template, as a row has it."""

    source: TemplateSource
    row: Mapping[str, Any]

    @property
    def version(self) -> int:
        """Its number among the versions of the name."""
        return int(self.row["version"])


class TemplateTable:
    """New versions are noted in table `audit` under `who`, the operator.

    Methods raise psycopg.Error.
    """

    def __init__(self, db: OperatorConnection, who: str) -> None:
        self._db = db
        self._who = who

    async def put(self, templates: Sequence[NamedTemplate]) -> list[tuple[int, bool]]:
        """Store the templates, all or none. Return the version of each, and whether it is new.

        A template that equals the last version of its name makes none. Raises PgmtaError for an
        unknown scope.
        """
        stored: dict[int, tuple[int, bool]] = {}
        # sorted, so that two operators wait for each other and never deadlock
        order = sorted(
            range(len(templates)), key=lambda i: (templates[i].tenant, templates[i].name)
        )
        async with self._db.transaction():
            for index in order:
                stored[index] = await self._put(templates[index])
        return [stored[index] for index in range(len(templates))]

    async def _put(self, given: NamedTemplate) -> tuple[int, bool]:
        if scope := given.source.unsubscribe:
            try:  # mail of all tenants may have a template without one
                await self._db.row(_SQL["scope"], {"scope": scope, "tenant": given.tenant or "*"})
            except psycopg.Error as error:
                problem = refused(error)
                if isinstance(problem, SubmissionError):
                    raise PgmtaError(f"template {given.name}: {problem}") from None
                raise
        while True:
            last = await self.find(given.tenant, given.name)
            if last and (last.source, last.row["words"]) == (given.source, given.words):
                return last.version, False
            source = given.source
            row = await self._db.row(
                _SQL["put"],
                {
                    "tenant": given.tenant,
                    "name": given.name,
                    "last": last.version if last else 0,
                    "sender": source.sender,
                    "from_field": source.from_,
                    "reply_to": source.reply_to,
                    "subject": source.subject,
                    "body": source.body,
                    "html": source.html,
                    "headers": json.dumps(dict(source.headers)),
                    "words": json.dumps(given.words),
                    "counts": json.dumps(given.template.counts),
                    "unsubscribe": source.unsubscribe,
                },
            )
            if row:  # otherwise another operator has taken this version meanwhile
                details = {"tenant": given.tenant, "version": row["version"]}
                await self._db.audit(self._who, "template put", given.name, details, 1)
                return int(row["version"]), True

    async def rows(
        self, tenant: str | None, after: str | None = None, most: int | None = None
    ) -> list[dict[str, Any]]:
        """Return the last version of each template without its texts; None is every tenant.

        `after` is a name, and `most` the number of rows; None: from the first, and all.
        """
        return await self._db.rows(_SQL["list"], {"tenant": tenant, "after": after, "most": most})

    async def find(
        self, tenant: str, name: str, version: int | None = None
    ) -> StoredTemplate | None:
        """Return a version, None if it is not there. Without a number it is the last one."""
        params = {"tenant": tenant, "name": name, "version": version}
        row = await self._db.row(_SQL["find"], params)
        if row is None:
            return None
        source = TemplateSource(
            sender=row["sender"], from_=row["from_field"], reply_to=row["reply_to"],
            subject=row["subject"], body=row["body"], html=row["html"],
            headers=row["headers"], unsubscribe=row["unsubscribe"],
        )  # fmt: skip
        return StoredTemplate(source, row)
