"""A campaign of tests, by SQL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg

from pgmta.compose.template import TemplateSource
from pgmta.compose.token import LinkNumbers, Purpose
from tests.features.lifecycle.tokens import KEYS, put_template
from tests.support.rows import column, fetch
from tests.web.web import RINGS

UNSUBSCRIBE = Purpose.UNSUBSCRIBE
SOURCE = TemplateSource(
    sender="news@a.example", from_="News <news@a.example>", subject="News for {{name}}",
    body="Hello {{name}}\n\n{{unsubscribe}}\n", html='<p><a href="{{unsubscribe}}">no more</a></p>',
)  # fmt: skip


def sections(folder: Path, url: str | None) -> dict[str, Any]:
    """Sections of queued.yaml with the key of links and their URL."""
    file = folder / "queued_unsubscribe.key"
    file.touch(0o600)
    file.write_text(f"{KEYS[UNSUBSCRIBE]}\n")
    return {"tokens": {"unsubscribe": [file.name], "unsubscribe_url": url}}


class Campaign:
    """A campaign, and what the database knows of it."""

    def __init__(
        self, db: psycopg.Connection, name: str = "news", scope: str = "news", tenant: str = ""
    ) -> None:
        self.db = db
        put_template(db, name, SOURCE)
        (self.id,) = fetch(
            db, "SELECT campaign_create(%s, %s, %s, scope => %s, tenant => %s)",
            name, f"key-{name}", name, scope, tenant,
        )  # fmt: skip

    def add(self, *recipients: str) -> None:
        """Add recipients, which get the next numbers."""
        self.db.execute(
            "INSERT INTO campaign_recipients (campaign_id, number, recipient, domain, params)"
            " SELECT %s, n + (SELECT count(*) FROM campaign_recipients WHERE campaign_id = %s),"
            " r, split_part(r, '@', 2), '{\"name\": \"Ann\"}'"
            " FROM unnest(%s::text[]) WITH ORDINALITY AS g (r, n)",
            (self.id, self.id, list(recipients)),
        )

    def start(self) -> None:
        self.db.execute("SELECT campaign_start(%s)", (self.id,))

    def feed(self) -> None:
        """Put mail into the queue, as queued does."""
        self.db.execute("SELECT campaign_take()")
        self.db.execute(
            "SELECT campaign_feed(credential, 'test') FROM campaigns WHERE id = %s", (self.id,)
        )

    def states(self) -> dict[str, str]:
        rows = self.db.execute(
            "SELECT recipient, state FROM campaign_recipients WHERE campaign_id = %s", (self.id,)
        )
        return dict(rows.fetchall())

    def suppressed(self, *addresses: str, scope: str = "news", tenant: str = "") -> list[bool]:
        """Whether each address is suppressed."""
        (found,) = fetch(self.db, "SELECT suppressed(%s, %s, %s)", tenant, scope, list(addresses))
        return list(found)

    def reasons(self) -> list[str]:
        """The suppressions that hold: address, scope and reason of each."""
        return column(
            self.db,
            "SELECT concat_ws(' ', address, nullif(scope, ''), reason) FROM suppressions"
            " WHERE released_at IS NULL ORDER BY address, scope",
        )


def token(campaign: int, number: int) -> str:
    """The token of a recipient."""
    return RINGS[UNSUBSCRIBE].sign(LinkNumbers(campaign, number).octets)
