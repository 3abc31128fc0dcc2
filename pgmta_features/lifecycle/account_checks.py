"""Checks of the schema lifecycle: tokens of accounts whose mail is not made."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from pgmta.command import age
from pgmta.store.admin.examination import Examination
from pgmta.store.queries import feature_queries
from queued.cli.doctor.diagnosis import Check, Diagnosis, error, warning

_SQL = feature_queries("lifecycle")
_LATE_S = 120.0  # for which a token may wait: it expires after 15 minutes
_LINES = "lines `no mail` and `set aside` in the log of queued name the tokens and their reasons"


class AccountChecks:
    """Checks over one connection. Each method raises psycopg.Error."""

    def __init__(self, examination: Examination) -> None:
        self._examination = examination

    async def all(self) -> dict[str, Check]:
        """Return the checks by name: none without the schema lifecycle."""
        return {"accounts": self.accounts} if (await self._ask("installed"))[0]["there"] else {}

    async def _ask(self, name: str) -> list[dict[str, Any]]:
        return await self._examination.run(_SQL[name])

    async def accounts(self) -> AsyncIterator[Diagnosis]:
        """Look for tokens that wait, and for those of the last day that got no mail."""
        for row in await self._ask("spent_budgets"):
            yield error(
                "accounts",
                f"the sum of the month of budget {row['key']} is used up ({row['most']} mails): "
                "its mail waits for the next month",
                "a higher `sum` of the collector in queued.yaml, then restart queued",
            )
        waiting = (await self._ask("waiting_tokens"))[0]
        if waiting["number"] and waiting["seconds"] > _LATE_S:
            yield error(
                "accounts",
                f"{waiting['number']} tokens have no mail yet, the oldest for "
                f"{age(waiting['seconds'])}; they expire after 15 minutes",
                "a collector for them in queued.yaml; docs/programs/lifecycle.md asks for one "
                "token",
            )
        done = (await self._ask("collections"))[0]
        if done["expired"]:
            yield warning(
                "accounts",
                f"{done['expired']} tokens of the last day expired before their mail was made",
                "look why collectors were late: SELECT * FROM lifecycle.collections WHERE expired "
                "> 0; lifecycle.activate_again() mails another link",
            )
        if done["refused"]:
            yield warning(
                "accounts", f"{done['refused']} tokens of the last day can have no mail", _LINES
            )


async def checks(examination: Examination) -> dict[str, Check]:
    """Return the checks of accounts by name. Raises psycopg.Error."""
    return await AccountChecks(examination).all()
