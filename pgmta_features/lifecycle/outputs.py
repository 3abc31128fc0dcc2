"""Where a collector puts its tokens: mail in the queue, or lines."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Protocol, TextIO

import psycopg

from pgmta.compose.token import KeyRings, Purpose
from pgmta.logs import get
from pgmta.postgres import faults
from pgmta_features.lifecycle.collections import CollectorStatements, LeasedToken, TokenBatch
from pgmta_features.lifecycle.config import PURPOSES, Collector, no_key, purpose_of

_LEASE_S = 60.0  # in which a batch is printed

log = get("collector")


class Output(Protocol):
    """Puts a batch of tokens somewhere."""

    def actions(self) -> list[str] | None:
        """Return the actions whose tokens it takes now; None: all."""
        ...

    async def put(self, store: CollectorStatements, reason: str, limit: int) -> TokenBatch:
        """Take a batch, and put it there. Raises psycopg.Error, OSError, UnknownKey."""
        ...

    async def check(self, store: CollectorStatements) -> None:
        """Raise the error that every batch would meet: psycopg.Error, UnknownKey."""
        ...


def actions_of(collector: Collector, keys: KeyRings) -> list[str] | None:
    """Return the actions whose tokens a collector takes now; None: all.

    Without a key for the others it leaves them, rather than stop the first two.
    """
    if collector.actions is None and keys.rings[Purpose.CONFIRM]:
        return None
    return collector.actions or list(PURPOSES)


def options_of(collector: Collector, keys: KeyRings) -> dict[str, Any]:
    """Return the options of the function lifecycle.collect().

    The key of a token is fixed now, and signs it when its mail is composed. Raises UnknownKey.
    """
    named = actions_of(collector, keys)
    actions = {}
    for name in [*PURPOSES, "*"] if named is None else named:
        purpose = purpose_of(name)
        # the database adds the name of the action to a URL of CONFIRM
        actions[name] = {
            "purpose": purpose,
            "key": keys.rings[purpose].signer,
            "url": f"{collector.url}{purpose.path}",
        }
    return {"tenant": collector.tenant, "budget": collector.budget_key, "actions": actions}


class QueueOutput:
    """Makes mail of tokens, in the statement that marks them. `keys` returns the present keys."""

    def __init__(self, collector: Collector, keys: Callable[[], KeyRings]) -> None:
        self._collector = collector
        self._keys = keys

    def actions(self) -> list[str] | None:
        """Return the actions that keys sign."""
        return actions_of(self._collector, self._keys())

    async def put(self, store: CollectorStatements, reason: str, limit: int) -> TokenBatch:
        """Make the mail of a batch, and wake the workers."""
        batch = await store.collect(reason, limit, options_of(self._collector, self._keys()))
        if batch.taken:
            await store.notify()
        return batch

    async def check(self, store: CollectorStatements) -> None:
        """Look at the keys and the actions. An action that can have no mail stops no other one."""
        try:
            found = await store.check(options_of(self._collector, self._keys()))
        except psycopg.errors.InvalidParameterValue as error:
            found = [faults.one_line(error)]
        found += await unsigned(self._collector, self._keys(), store)
        for reason in found:
            log.warning("no mail of an action", reason=reason)


async def unsigned(collector: Collector, keys: KeyRings, store: CollectorStatements) -> list[str]:
    """Return the mistake of actions that only the database knows, if no key signs them."""
    if collector.actions is not None or keys.rings[Purpose.CONFIRM]:
        return []
    return [no_key(name) for name in (await store.other_actions(list(PURPOSES)))[:1]]


type Frame = Callable[[list[tuple[LeasedToken, str]]], tuple[str, list[tuple[int, str]]]]
"""Returns a line of tokens with their signed texts, and those that it can't have, with reasons."""


def json_frame(tokens: list[tuple[LeasedToken, str]]) -> tuple[str, list[tuple[int, str]]]:
    """Return a JSON array of objects as a line. It can have every token."""
    made = [
        {"action": each.action, "email": each.email, "login": each.login, "secret": signed,
         "code": each.code, "expires_at": each.expires_at}
        for each, signed in tokens
    ]  # fmt: skip
    return json.dumps(made, ensure_ascii=False) if made else "", []


_NUMBERS = {name: str(number) for number, name in enumerate(PURPOSES, 1)}


def csv_frame(tokens: list[tuple[LeasedToken, str]]) -> tuple[str, list[tuple[int, str]]]:
    """Return mailroom's line: action, email, login, secret and code of each token, with commas.

    Actions that mailroom does not know have their names. It has no quotes, so a value with a comma,
    a quote or a line end can't be in it.
    """
    out, refused = io.StringIO(), []
    values: list[str] = []
    for each, signed in tokens:
        action = _NUMBERS.get(each.action, each.action)
        row = [action, each.email, each.login, signed, each.code or ""]
        if any(set(value) & set(',"') or not value.isprintable() for value in row):
            refused.append((each.token, "a value has a comma, a quote or a control character"))
        else:
            values += row
    csv.writer(out, lineterminator="").writerow(values)
    return out.getvalue() if values else "", refused


class LineOutput:
    """Prints the tokens of a batch as one line, and marks them then: each at least once."""

    def __init__(
        self, collector: Collector, stream: TextIO, keys: Callable[[], KeyRings], frame: Frame
    ) -> None:
        self._collector = collector
        self._stream = stream
        self._keys = keys
        self._frame = frame

    def actions(self) -> list[str] | None:
        """Return the actions that keys sign."""
        return actions_of(self._collector, self._keys())

    async def check(self, store: CollectorStatements) -> None:
        """Look whether accounts can be read."""
        await store.check({})
        for reason in await unsigned(self._collector, self._keys(), store):
            log.warning("an action is not printed", reason=reason)

    async def put(self, store: CollectorStatements, reason: str, limit: int) -> TokenBatch:
        """Print a batch."""
        began, keys = datetime.now(UTC), self._keys()
        found = await store.lease(limit, actions_of(self._collector, keys), _LEASE_S)
        leased = [each for each in found if not each.expired]
        expired = len(found) - len(leased)
        rings = {name: keys.ring(purpose_of(name), name) for name in {t.action for t in leased}}
        signed = [
            (each, rings[each.action].sign(each.secret, _signed_code(each)))
            for each in leased
            if each.email
        ]
        line, refused = self._frame(signed)
        refused += [(each.token, "its account has no mailbox") for each in leased if not each.email]
        if line:
            await asyncio.to_thread(self._print, line)
        if found:
            tokens = [each.token for each in leased]
            await store.printed(reason, tokens, len(refused), expired, began)
        return TokenBatch(len(leased) - len(refused), refused, None, limit, expired)

    def _print(self, line: str) -> None:
        self._stream.write(f"{line}\n")
        self._stream.flush()


def _signed_code(token: LeasedToken) -> str:
    return token.code or "" if token.code_signed else ""
