"""A database with a template, a queued.yaml, and `queuectl campaign` on it."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import psycopg
import yaml
from click.testing import CliRunner, Result

from pgmta.compose.template import TemplateSource
from queued.cli.queuectl import main
from tests.scenarios.test_composed import put_template
from tests.support.rows import column

HELLO = TemplateSource(
    sender="shop@a.example", from_="Shop <shop@a.example>", subject="Hello {{name}}",
    body="Dear {{name}} in {{city}}, you are {{recipient}}.\n",
)  # fmt: skip
COUNTS = ("rows", "imported", "suppressed", "bad", "duplicates")


class Site:
    """Runs commands; the campaign `news` has the words name and city."""

    def __init__(self, folder: Path, uri: str, db: psycopg.Connection[Any]) -> None:
        self.folder, self.uri, self.db = folder, uri, db
        self.path = folder / "queued.yaml"
        self.configure({})
        put_template(db, "hello", HELLO)

    def configure(self, more: dict[str, Any]) -> None:
        config = {"environment": {"database": {"uri": self.uri}}, **more}
        self.path.write_text(yaml.safe_dump(config))

    def create(self, name: str = "news", *options: str) -> dict[str, Any]:
        given = ["--template", "hello", "--credential", "ses-1", "--json", *options]
        found: dict[str, Any] = json.loads(self.said("create", name, *given))
        return found

    def file(self, content: str | bytes, name: str = "list.csv") -> str:
        path = self.folder / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path)

    def run(self, command: str, *words: str) -> Result:
        return CliRunner().invoke(main, ["campaign", command, "-c", str(self.path), *words])

    def said(self, command: str, *words: str) -> str:
        """Run a command, which has to go well; return what it prints."""
        result = self.run(command, *words)
        assert result.exit_code == 0, result.stderr
        return result.stdout

    def imported(self, content: str | bytes, *options: str, code: int = 0) -> dict[str, int]:
        """Import a list; return the counts."""
        words = ["news", self.file(content), "--json", *options]
        result = self.run("import", *words)
        assert result.exit_code == code, result.stderr
        found: dict[str, Any] = json.loads(result.stdout)
        return {name: found[name] for name in COUNTS}

    def refused(self, content: str | bytes, *options: str, code: int = 2) -> str:
        """Import a list that is refused; return why. Nothing is left."""
        before = self.books()
        result = self.run("import", "news", self.file(content), *options)
        assert result.exit_code == code, result.output
        assert self.books() == before
        return result.stderr

    def books(self) -> tuple[int, int, int]:
        """Recipients, those by the counts, and entries of imports in the audit."""
        (number,) = column(self.db, "SELECT count(*) FROM campaign_recipients")
        query = "SELECT coalesce(sum(recipients), 0)::bigint FROM campaign_statistics"
        (counted,) = column(self.db, query)
        (noted,) = column(self.db, "SELECT count(*) FROM audit WHERE action = 'campaign import'")
        assert number == counted
        return number, counted, noted

    def recipients(self, name: str = "news") -> list[str]:
        """The mailboxes by number; no number is left out."""
        query = (
            "SELECT r.number, r.recipient FROM campaign_recipients AS r JOIN campaigns AS c"
            " ON c.id = r.campaign_id WHERE c.name = %s ORDER BY r.number"
        )
        rows = self.db.execute(query, (name,)).fetchall()
        assert [row[0] for row in rows] == list(range(1, len(rows) + 1))
        return [row[1] for row in rows]

    def exported(self, *options: str) -> list[list[str]]:
        """The cells of `export`."""
        return list(csv.reader(io.StringIO(self.said("export", "news", *options), newline="")))
