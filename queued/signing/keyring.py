"""The keys that sign mail: from files, and from the table.

The first key imports what reads it, which takes 4 MB.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg

from pgmta.config.loader import Problem
from pgmta.errors import StoreUnavailable
from pgmta.logs import get
from pgmta.mail.address import domains_above
from pgmta.model import DkimKey
from pgmta.postgres import faults
from pgmta.secret_file import read_secret
from pgmta.service import together
from pgmta.store.records.dkim_keys import DkimKeys
from queued.config import Signing, SigningKeyFile
from queued.signing.key_problem import KeyProblem

if TYPE_CHECKING:
    from queued.signing.signing_key import SigningKey

_LOOK_INTERVAL_S = 1.0  # at the table
_MAX_KEY_FILE_OCTETS = 64 << 10
_MAX_CHOICES = 10_000  # in memory

log = get("signing")


@dataclass(frozen=True, slots=True)
class Choice:
    """The keys that sign some mail; without keys `problem` has the reason."""

    keys: tuple[SigningKey, ...]
    problem: str = ""
    known: bool = True
    """Whether the domain has any key."""


def read_key(entry: SigningKeyFile) -> SigningKey:
    """Return the key of a file; one that can't be used has a problem."""
    from queued.signing.signing_key import SigningKey

    key = SigningKey(entry.domain, entry.selector, "", entry.active_from, entry.file)
    try:
        key.pem = read_secret(entry.file, _MAX_KEY_FILE_OCTETS)
        key.load()
    except (ValueError, KeyProblem) as error:
        key.problem = str(error) if entry.file in str(error) else f"{entry.file}: {error}"
    return key


def key_problems(config: Signing) -> list[Problem]:
    """Return the keys of files that can't be used: places in the configuration, and reasons."""
    found = [(number, read_key(entry).problem) for number, entry in enumerate(config.keys)]
    return [(("signing", "keys", number, "file"), problem) for number, problem in found if problem]


class Keyring:
    """Knows the keys of each domain; `keys` is the table, if the configuration uses it.

    `run` looks every second whether the table has changed.
    """

    def __init__(self, keys: DkimKeys) -> None:
        self._table = keys
        self.uses_table = False
        """Whether another look at the table may find a key."""
        self.unreadable = ""
        """Why the table could not be read, '' if it could or has not been looked at."""
        self._version: int | None = None  # that the table had when it was read
        self._files: list[SigningKey] = []
        self._rows: dict[tuple[str, str], SigningKey] = {}
        self._domains: dict[str, list[SigningKey]] = {}
        self._chosen: dict[tuple[str, bool, tuple[str, ...]], tuple[float, Choice]] = {}
        self._lock = asyncio.Lock()

    def configure(self, config: Signing) -> None:
        """Read the files, and use the table from now on or no more."""
        self._files = [read_key(entry) for entry in config.keys]
        for key in self._files:
            if key.problem:
                log.warning("a key can't be used", key=key.name, reason=key.problem)
        self.uses_table = config.table
        if not config.table:
            self._version, self._rows, self.unreadable = None, {}, ""
        self._sort()

    @property
    def ready(self) -> bool:
        """Whether all keys are known; not before the table was read once."""
        return not self.uses_table or self._version is not None

    async def run(self) -> None:
        """Look at the table again and again until cancelled."""
        failed = False
        while True:
            try:
                await self.read_table()
                failed = False
            except (StoreUnavailable, psycopg.Error) as error:
                if not failed:
                    log.warning("can't read the keys", reason=faults.one_line(error))
                failed = True
            await asyncio.sleep(together(_LOOK_INTERVAL_S))

    async def read_table(self) -> None:
        """Read the table if it is used and has changed. Raises StoreUnavailable, psycopg.Error."""
        if not self.uses_table:
            return
        async with self._lock:
            try:
                version = await self._table.version()
                found = None if version == self._version else await self._table.keys()
            except psycopg.Error as error:
                self.unreadable = f"the table of keys can't be read: {faults.one_line(error)}"
                raise
            if self.uses_table:
                self.unreadable = ""
                if found is not None:
                    self._take(found)
                    self._version = version

    def _take(self, found: Iterable[DkimKey]) -> None:
        rows: dict[tuple[str, str], SigningKey] = {}
        for row in found:
            known = self._rows.get((row.domain, row.selector))
            pem = row.private_key.encode()
            if known and (known.pem, known.type, known.active_from) == (
                pem, row.type, row.active_from
            ):  # fmt: skip
                rows[row.domain, row.selector] = known
                continue
            from queued.signing.signing_key import SigningKey

            key = SigningKey(row.domain, row.selector, row.type, row.active_from, "table", pem)
            rows[row.domain, row.selector] = key
        if self._version is not None:
            log.info("keys read again", keys=len(rows))
        self._rows = rows
        self._sort()

    def _sort(self) -> None:
        self._chosen.clear()
        self._domains.clear()
        names = {(key.domain, key.selector) for key in self._files}
        rows = (key for name, key in self._rows.items() if name not in names)
        for key in (*self._files, *rows):
            self._domains.setdefault(key.domain, []).append(key)

    def choose(self, domain: str, *, parents: bool, selectors: Iterable[str] | None) -> Choice:
        """Return the keys that sign for a domain now: of each type the last one that is active.

        With `parents` they may be those of the nearest domain above it that has keys.
        """
        now = time.time()
        wanted = domain, parents, tuple(selectors or ())
        if (kept := self._chosen.get(wanted)) and kept[0] > now:
            return kept[1]
        if len(self._chosen) >= _MAX_CHOICES:
            self._chosen.clear()
        names = (domain, *domains_above(domain)) if parents else (domain,)
        by = next((name for name in names if name in self._domains), domain)
        keys = self._domains.get(by, [])
        if wanted[2]:
            keys = [key for key in keys if key.selector in wanted[2]]
        until = min((key.active_from for key in keys if key.active_from > now), default=now + 1e9)
        choice = _chosen(domain, [key for key in keys if key.active_from <= now], wanted[2])
        if not choice.keys:
            choice = Choice((), choice.problem, by in self._domains)
        self._chosen[wanted] = until, choice
        return choice


def _chosen(domain: str, active: list[SigningKey], selectors: tuple[str, ...]) -> Choice:
    last: dict[str, SigningKey] = {}
    for key in sorted(active, key=lambda key: (key.active_from, key.selector)):
        last[key.type] = key
    unread = last.pop("", None)
    # a broken key whose type is unknown counts, unless a later one replaces it
    if unread and unread.active_from >= max((k.active_from for k in last.values()), default=0):
        last[""] = unread
    if not last:
        names = ", ".join(f"{domain}/{each}" for each in selectors) or f"of {domain}"
        return Choice((), f"there is no active key {names}")
    return Choice(tuple(last[kind] for kind in ("rsa", "ed25519", "") if kind in last))
