"""The keys that sign mail, as the commands `queuectl dkim` show them."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import psycopg

from pgmta.errors import PgmtaError
from pgmta.store.dkim_keys import KeyTable
from queued.cli.change import who
from queued.cli.target import database_of
from queued.config import read_config
from queued.delivery.signing_key import KeyProblem, SigningKey, public_of, record_of
from queued.worker.keyring import read_key

UNPUBLISHED = "unpublished"
"""The state of a key of the table whose record no `queuectl dkim test` has seen in DNS."""


@dataclass(frozen=True, slots=True)
class ShownKey:
    """A key with its public part. `key` has the private part, if this command may read it."""

    key: SigningKey
    public: str
    state: str
    """signs, unpublished, waits (for its time), replaced (by a later one), or broken."""

    @property
    def record(self) -> str:
        """The text of its TXT record; '' if the key is broken."""
        return record_of(self.key.type, self.public) if self.public else ""


def shown_keys(config: Path, domain: str | None, selector: str | None) -> list[ShownKey]:
    """Return the keys of files and of the table, or those of a domain and DKIM selector.

    Raises ConfigError, StoreUnavailable, and PgmtaError if there is none.
    """
    signing = read_config(config, passwords=False).signing
    keys = [read_key(entry) for entry in signing.keys]
    public: dict[str, str] = {}
    unpublished: set[str] = set()
    if signing.table:
        table = KeyTable(database_of(config), who())
        try:
            for row in table.rows():
                key = SigningKey(
                    row["domain"], row["selector"], row["type"], row["active_from"].timestamp(),
                    "table",
                )  # fmt: skip
                if any(key.name == each.name for each in keys):
                    continue  # that of the file signs
                key.pem = (table.private(key.domain, key.selector) or "").encode()
                public[key.name] = row["public_key"]
                if row["unpublished"]:
                    unpublished.add(key.name)
                keys.append(key)
        finally:
            table.close()
    found = _with_states(keys, public, unpublished)
    found = [
        each
        for each in found
        if domain in (None, each.key.domain) and selector in (None, each.key.selector)
    ]
    if not found:
        wanted = "/".join(filter(None, (domain, selector)))
        unread = "; signing.table is false: the keys in the table were not read"
        raise PgmtaError(
            f"there is no key {wanted}".rstrip() + f" in {config}" + unread * (not signing.table)
        )
    return found


def publish(config: Path, keys: Sequence[ShownKey]) -> bool:
    """Let keys sign whose records are in DNS; return False if this login may not do it.

    Raises StoreUnavailable.
    """
    table = KeyTable(database_of(config), who())
    try:
        for each in keys:
            table.publish(each.key.domain, each.key.selector, each.public)
    except psycopg.errors.InsufficientPrivilege:
        return False
    finally:
        table.close()
    return True


def _with_states(
    keys: list[SigningKey], public: dict[str, str], unpublished: Collection[str]
) -> list[ShownKey]:
    now = time.time()
    last: dict[tuple[str, str], SigningKey] = {}
    for key in sorted(keys, key=lambda key: (key.active_from, key.selector)):
        if key.active_from <= now and not key.problem and key.name not in unpublished:
            last[key.domain, key.type] = key
    shown = []
    for key in sorted(keys, key=lambda key: (key.domain, key.active_from, key.selector)):
        part = public.get(key.name, "")
        if key.pem and not key.problem:
            try:
                part = public_of(key.load())
            except KeyProblem:
                part = ""
        if key.problem:
            state = f"broken: {key.problem}"
        elif key.name in unpublished:
            state = UNPUBLISHED
        elif key.active_from > now:
            state = "waits"
        else:
            state = "signs" if last[key.domain, key.type] is key else "replaced"
        shown.append(ShownKey(key, part, state))
    return shown
