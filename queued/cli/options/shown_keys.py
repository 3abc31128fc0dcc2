"""The keys that sign mail, as the commands `queuectl dkim` show them."""

from __future__ import annotations

import asyncio
import base64
import re
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from pgmta.errors import DeliveryError, PgmtaError
from pgmta.postgres.operator import connected
from pgmta.store.records.dkim_keys import KeyTable
from queued.cli.options.queue_command import database_of, who
from queued.config import QueuedConfig, read_config
from queued.delivery.dns.resolver import Questions, texts
from queued.signing.canonical import BodyHash, split_header
from queued.signing.key_problem import KeyProblem
from queued.signing.keyring import read_key
from queued.signing.sign import SignedHeader, sign
from queued.signing.signing_key import (
    SigningKey,
    check_record,
    public_of,
    record_of,
    verified,
)

UNPUBLISHED_STATE = "unpublished"
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


async def shown_keys(config: Path, domain: str | None, selector: str | None) -> list[ShownKey]:
    """Return the keys of files and of the table, or those of a domain and DKIM selector.

    Raises ConfigError, StoreUnavailable, and PgmtaError if there is none.
    """
    signing = read_config(config, passwords=False).signing
    keys = [read_key(entry) for entry in signing.keys]
    public: dict[str, str] = {}
    unpublished: set[str] = set()
    if signing.table:
        async with connected(database_of(config)) as db:
            table = KeyTable(db, who())
            for row in await table.rows():
                key = SigningKey(
                    row["domain"], row["selector"], row["type"], row["active_from"].timestamp(),
                    "table",
                )  # fmt: skip
                if any(key.name == each.name for each in keys):
                    continue  # the key of the file signs
                key.pem = (await table.private(key.domain, key.selector) or "").encode()
                public[key.name] = row["public_key"]
                if row["unpublished"]:
                    unpublished.add(key.name)
                keys.append(key)
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


async def publish(config: Path, keys: Sequence[ShownKey]) -> bool:
    """Let keys sign whose records are in DNS; return False if this login may not do it.

    Raises StoreUnavailable.
    """
    async with connected(database_of(config)) as db:
        table = KeyTable(db, who())
        try:
            for each in keys:
                await table.publish(each.key.domain, each.key.selector, each.public)
        except psycopg.errors.InsufficientPrivilege:
            return False
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
            state = UNPUBLISHED_STATE
        elif key.active_from > now:
            state = "waits"
        else:
            state = "signs" if last[key.domain, key.type] is key else "replaced"
        shown.append(ShownKey(key, part, state))
    return shown


_OVERSIGN = frozenset((b"from", b"subject", b"date"))
_SIGNATURE = re.compile(rb"\tb=([^;]*)\r\n\Z")
_BLANK = re.compile(rb"\s+")
_MAX_QUESTIONS = 20  # to name servers at one time


@dataclass(slots=True)
class KeyCheck:
    """The result for a key; without an error all is well."""

    error: str = ""
    unanswered: bool = False
    """Whether the error is that no name server answered."""
    remarks: list[str] = field(default_factory=list)


async def check_keys(
    config: QueuedConfig, keys: Sequence[ShownKey], deadline: float | None = None
) -> list[KeyCheck]:
    """Check the keys with the name servers of the configuration.

    Keys without an answer at the deadline, by the clock of the loop, are unanswered.
    """
    questions = Questions(config.delivery.dns)
    slots = asyncio.Semaphore(_MAX_QUESTIONS)

    async def check(key: ShownKey) -> KeyCheck:
        try:
            async with asyncio.timeout_at(deadline), slots:
                return await _check(questions, key)
        except TimeoutError:
            return KeyCheck("no answer of the name servers", unanswered=True)

    return await asyncio.gather(*map(check, keys))


async def _check(questions: Questions, shown: ShownKey) -> KeyCheck:
    key, result = shown.key, KeyCheck()
    if key.problem:
        result.error = key.problem
        return result
    try:
        answer = await questions.ask(key.owner, "TXT")
        found = texts(answer.records)
        if not found:
            raise KeyProblem(f"{key.owner} has no TXT record; `queuectl dkim dns` prints it")
        if len(found) > 1:  # RFC 6376, section 3.6.2.2: the result is undefined
            raise KeyProblem(f"{key.owner} has {len(found)} TXT records, and may have one")
        result.remarks += check_record(found[0], key.type, shown.public)
        if not key.pem:
            result.remarks.append("no sample signed: only pgmta_queued reads the private part")
        elif not _sample(key, shown.public):
            raise KeyProblem("a sample that it signed does not verify")
    except (KeyProblem, DeliveryError) as error:
        result.error = str(error)
        result.unanswered = isinstance(error, DeliveryError)
    return result


def _sample(key: SigningKey, public: str) -> bool:
    """Sign a message, and verify the signature by the published part (RFC 6376, section 6.1.3)."""
    content = (
        f"From: postmaster@{key.domain}\r\nSubject: a  sample\r\n\r\nSome \t text \r\n\r\n"
    ).encode()
    header, start = split_header(content)
    body = BodyHash()
    body.feed(content[start:])
    signed_header = SignedHeader(header, _OVERSIGN)
    signed = sign(key, signed_header, body.digest(), now=time.time())
    match = _SIGNATURE.search(signed)
    if not match:
        return False
    signature = base64.b64decode(_BLANK.sub(b"", match[1]))
    unsigned = signed[: match.start(1)].partition(b":")[2]
    canonical = b"dkim-signature:" + b" ".join(unsigned.split())
    return verified(key.type, public, signed_header.covered[1] + canonical, signature)
