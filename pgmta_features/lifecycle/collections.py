"""Tokens that become mail: the statements of a collector."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple, cast

from pgmta.postgres.link_connection import LinkConnection
from pgmta.postgres.notify import NOTIFY
from pgmta.store.queries import feature_queries

_SQL = feature_queries("lifecycle")

_PROOF_S = 30.0

SESSION = {"plan_cache_mode": "force_generic_plan"}
"""Settings of the session: a plan for a small table would later sort a large one."""


class TokenBatch(NamedTuple):
    """A batch: how many tokens became mail or a line, which can't and why, and a `wait` in seconds.

    `wait` says when the budget allows the next batch; it is None without a budget. With `spent` the
    sum of the month is used up. `expired` tokens were too old for mail or a line. `most` is how
    many the limit and the budget allowed. With `aside` so many tokens rest for ten seconds, for the
    reason: what the template of their action lacks.
    """

    taken: int
    refused: list[tuple[int, str]]
    wait: float | None
    most: int
    expired: int = 0
    spent: bool = False
    aside: Sequence[tuple[int, str]] = ()

    @property
    def done(self) -> int:
        """How many tokens do not wait now."""
        resting = sum(number for number, _ in self.aside)
        return self.taken + len(self.refused) + self.expired + resting

    @property
    def full(self) -> bool:
        """Whether more tokens may wait."""
        return self.done >= self.most


class LeasedToken(NamedTuple):
    """A token that a collector prints, if it is not `expired`.

    `login` is '' for a mailbox without an account. Mailroom prints the code of each token, and the
    signature covers it only with `code_signed`. `expires_at` is in seconds since 1970.
    """

    token: int
    action: str
    email: str
    login: str
    secret: bytes
    code: str | None
    code_signed: bool
    expires_at: int
    expired: bool = False


class CollectorStatements:
    """The statements of the collector `name` of a process, over a separate connection.

    Each is one transaction. They raise psycopg.Error, and Undecided without a standby's word.
    """

    def __init__(self, name: str, worker: str, limit: int) -> None:
        self._fields = {"collector": name, "worker": worker, "limit": limit}
        self.connection: LinkConnection | None = None
        """The connection; its user makes and closes it."""

    async def listen(self, channel: str) -> None:
        """Get the notifications of a channel from now on. The name must be checked."""
        await self._run(f'LISTEN "{channel}"'.encode(), {}, prepare=False)

    async def takes(self, actions: Sequence[str] | None, budget: str | None) -> None:
        """Say which tokens this collector takes, None for all, and the key of its budget."""
        fields = {**self._fields, "actions": actions, "budget": budget}
        await self._run(_SQL["collector_takes"], fields)

    async def set_budget(self, key: str, rate: float, month_most: int | None) -> bool:
        """Make the budget or change it; return whether that changed anything."""
        ((changed,),) = await self._run(
            _SQL["set_budget"], {"key": key, "rate": rate, "month_most": month_most}
        )
        return bool(changed)

    async def waiting(self, actions: Sequence[str] | None) -> list[int]:
        """Return tokens of these actions that wait, None: of all; at most as many as a batch."""
        ((tokens,),) = await self._run(
            _SQL["waiting"], {"actions": actions, "limit": self._fields["limit"]}
        )
        return list(tokens or [])

    async def collect(self, reason: str, limit: int, options: dict[str, Any]) -> TokenBatch:
        """Make the mail of at most `limit` tokens."""
        fields = {**self._fields, "reason": reason, "options": json.dumps(options), "limit": limit}
        ((taken, refused, wait, expired, spent, most, aside),) = await self._run(
            _SQL["collect"], fields
        )
        faults = [(token, fault) for token, fault, _ in _json(refused)]
        resting = [(number, f"action {action}: {why}") for action, why, number in _json(aside)]
        return TokenBatch(taken, faults, wait, most, expired, spent, resting)

    async def notify(self) -> None:
        """Wake the workers that deliver."""
        await self._run(NOTIFY.encode(), {}, prepare=False)

    async def set_aside(self, token: int, seconds: float) -> None:
        """Let a token rest for `seconds`, so that the others go on."""
        await self._run(_SQL["set_aside"], {"token": token, "seconds": seconds})

    async def lease(
        self, limit: int, actions: Sequence[str] | None, seconds: float
    ) -> list[LeasedToken]:
        """Lease at most `limit` tokens of these actions to be printed within `seconds`."""
        rows = await self._run(
            _SQL["lease"], {"limit": limit, "actions": actions, "lease": seconds}
        )
        return [LeasedToken(*row) for row in rows]

    async def printed(
        self, reason: str, tokens: list[int], refused: int, expired: int, began: datetime
    ) -> None:
        """Mark tokens that were printed, or can't be; `refused` is the number of the latter.

        `expired` others were too old.
        """
        fields = {"reason": reason, "tokens": tokens, "refused": refused, "began": began,
                  "expired": expired}  # fmt: skip
        await self._run(_SQL["printed"], {**self._fields, **fields})

    async def check(self, options: dict[str, Any]) -> list[str]:
        """Return what templates lack, whose actions get no mail.

        Raises psycopg.Error if the schema or an action is not there, or accounts can't be read.
        """
        ((found, _),) = await self._run(_SQL["check"], {"options": json.dumps(options)})
        return list(found)

    async def other_actions(self, names: Sequence[str]) -> list[str]:
        """Return the actions that have none of these names."""
        rows = await self._run(_SQL["other_actions"], {"names": names})
        return [name for (name,) in rows]

    async def _run(
        self, query: Any, fields: dict[str, Any], *, prepare: bool = True
    ) -> list[tuple[Any, ...]]:
        connection = cast(LinkConnection, self.connection)
        cursor = connection.cursor(binary=True)
        await cursor.execute(query, fields or None, prepare=prepare)
        if connection.doubtful:
            await connection.prove(_PROOF_S)
        return await cursor.fetchall() if cursor.description else []


def _json(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str | bytes) else value or []
