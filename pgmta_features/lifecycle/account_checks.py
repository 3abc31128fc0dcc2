"""Checks of the schema lifecycle: tokens of accounts whose mail is not made."""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator
from typing import Any

from pgmta.command import age
from pgmta.store.admin.examination import Examination
from pgmta.store.queries import feature_queries
from pgmta_features.lifecycle.config import PURPOSES
from queued.cli.doctor.diagnosis import Check, Diagnosis, error, warning

_SQL = feature_queries("lifecycle")
_LATE_S = 120.0  # for which a token may wait: the first two actions expire after 15 minutes
_RESTART_S = 10.0  # for which no collector may be there
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
        for row in await self._ask("lost_columns"):
            yield error(
                "accounts",
                f"the bound table {row['table']} lacks what the binding names: {row['columns']}",
                f"`{_bind_again(row['bound'])}` with the present names; until then activations "
                "fail",
            )
        for row in await self._ask("spent_budgets"):
            yield error(
                "accounts",
                f"the sum of the month of budget {row['key']} is used up ({row['most']} mails): "
                "its mail waits for the next month",
                "a higher `sum` of the collector in queued.yaml, then restart queued",
            )
        resting = await self._ask("resting")
        for row in resting:
            yield error(
                "accounts",
                f"{row['number']} tokens of {row['action']} wait: {row['fault']}",
                "`queuectl template put` stores another version of its template, and their mail "
                f"goes within 10 s; `queuectl lifecycle again --action {row['action']}` mails "
                "those that expired until then",
            )
        for row in await self._ask("waiting_actions"):
            action, oldest = row["action"], age(row["seconds"])
            tokens = f"{row['number']} tokens of {action} have no mail yet, the oldest for {oldest}"
            if not row["taken"] and row["seconds"] > _RESTART_S:
                yield error(
                    "accounts",
                    f"{tokens}: no collector takes them",
                    f"a queued that runs, with a collector for {action} in its queued.yaml"
                    + ("" if action in PURPOSES else ", and a key of tokens.confirm"),
                )
            elif (
                row["taken"]
                and row["seconds"] > _LATE_S
                and action not in {each["action"] for each in resting}
            ):
                yield error(
                    "accounts",
                    f"{tokens}, though a collector takes them",
                    "`queuectl budget list collector:`, and lines `connects again`, `tokens wait` "
                    "and `set aside` in the log of queued",
                )
        for row in await self._ask("unsent"):
            yield error(
                "accounts",
                f"{row['number']} tokens of {row['action']} expired within a day before their mail "
                "left",
                f"`queuectl lifecycle again --action {row['action']}` mails new ones",
            )
        if refused := (await self._ask("refused"))[0]["refused"]:
            yield warning("accounts", f"{refused} tokens of the last day can have no mail", _LINES)


def _bind_again(bound: dict[str, Any]) -> str:
    """Return the command that binds a table as it is bound."""
    words = [bound["table"]]
    for option in ("id", "email", "login", "status", "active", "confirmed", "blocked", "language"):
        if option in bound:
            words += [f"--{option}", bound[option]]
    if meanings := bound.get("status_words"):
        words += ["--status-words", ",".join(f"{word}={meanings[word]}" for word in meanings)]
    if "words" in bound:
        words += ["--words", ",".join(bound["words"])]
    return f"queuectl lifecycle bind {shlex.join(words)} --create"


async def checks(examination: Examination) -> dict[str, Check]:
    """Return the checks of accounts by name. Raises psycopg.Error."""
    return await AccountChecks(examination).all()
