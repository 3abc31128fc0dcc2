"""The one door through which mail gets into the queue."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from psycopg import errors as pg_errors

from pgmta.errors import AnswerLost, Backend, SchemaMismatch, StoreUnavailable, Undecided
from pgmta.mail.address import domain_of
from pgmta.model import CHUNK_OCTETS, NewMessage, Options
from pgmta.postgres.binary import (
    JSONB_OID,
    NULL_TEXT,
    TIMESTAMPTZ_OID,
    Bigints,
    Composites,
    instant,
    jsonb,
    null,
    text,
)
from pgmta.postgres.link import Link
from pgmta.store.queries import Statement, queries
from pgmta.store.schema import Schema, mismatch

SESSION = {"jit": "off", "plan_cache_mode": "force_generic_plan"}
"""Run-time parameters for the connections that write messages."""

_PROOF_TIMEOUT_S = 30.0  # afterwards what became of a commit is left open
_LOOK_INTERVAL_S = 0.25

_SQL = queries("enqueue")
_PUT = {wake: _SQL["put"].fill(columns=_SQL["wake"] if wake else "") for wake in (False, True)}
"""The statement without and with a NOTIFY."""
# COPY in binary form has a header, for each row the number of fields and each field with its
# length, and a trailer.
_COPY_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_COPY_ROW = struct.Struct("!hiqiii")
_COPY_END = struct.pack("!h", -1)


@dataclass(frozen=True, slots=True)
class Companion:
    """A statement that is done in the transaction of a group, after it.

    So it may take locks that others wait for: nothing is sent while it holds them.
    """

    statement: Statement
    params: dict[str, Any]


class Enqueue:
    """Writes groups of accepted messages, each group in one commit."""

    def __init__(self, link: Link, schema: Schema | None = None) -> None:
        self.link = link
        """Its connection."""
        self._schema = schema or Schema()

    async def reserve(self, number: int) -> list[int]:
        """Reserve `number` message ids, which nobody else gets.

        Raises StoreUnavailable, SchemaMismatch.
        """
        try:
            # by `look`: a session with a standby that is promoted has not noted the timeline
            ((ids, names, _),) = await self.link.look(_SQL["reserve"], {"number": number})
        except pg_errors.UndefinedTable:
            raise SchemaMismatch(mismatch(self._schema.known, set())) from None
        self._schema.learn(names)
        self._schema.require()
        return list(ids)

    async def commit(
        self,
        group: list[NewMessage],
        patience: float = _PROOF_TIMEOUT_S,
        away: Callable[[StoreUnavailable], None] = lambda error: None,
        beside: Companion | None = None,
        *,
        wake: bool = False,
    ) -> bool:
        """Store the group; on return it is durable. So is what `beside` does, or neither is.

        With `wake` the commit notifies the workers; returns whether it did.

        If the connection breaks before the answer, the store looks the group up on a new one. It
        does so for at most `patience` seconds. The message ids are known before, so a committed
        group is never written twice. `away` is called for each look that fails. A group that is
        there may still be on this server alone: it counts if the link proves it in time. Raises
        Undecided if no look succeeds, or without that proof. With every other error nothing is
        stored by this call: StoreUnavailable if PostgreSQL cannot do it now, SchemaMismatch if the
        schema is of another version, psycopg.Error if PostgreSQL refuses it. That is
        UniqueViolation if a message of the group is there already, or if an id is another's.
        """
        if self._schema.problem:
            self._schema.require()
        try:
            await self._insert(group, beside, wake)
        # the queue of NOTIFY is full: a session keeps old ones
        except pg_errors.ProgramLimitExceeded:
            if not wake:
                raise
            return await self.commit(group, patience, away, beside)
        except AnswerLost as error:
            lost = [error.backend]
        # a former call has stored it, and could not see that: its server was no primary any more
        except pg_errors.UniqueViolation as error:
            if error.diag.table_name != "messages":
                raise
            lost = []
        else:
            return wake
        await self._find_out(group, lost, time.monotonic() + patience, away, beside)
        return False

    async def _find_out(
        self,
        group: list[NewMessage],
        lost: list[Backend],
        until: float,
        away: Callable[[StoreUnavailable], None],
        beside: Companion | None,
    ) -> None:
        """Look the group up until it is known what became of it; if it is not there, write it.

        What is seen counts once it is proven: the session of its commit may have ended while it
        waited for a standby. Raises UniqueViolation if only some of the group are there, or if
        an id is another's: a standby was promoted that lacked more commits than note_timeline()
        makes room for.
        """
        bare = Messages([replace(message, body=b"") for message in group])
        while True:
            try:
                # before the look, because a statement that still runs could commit after it
                await self.link.end_backends(lost)
                ((stored,),) = await self.link.look(_SQL["known"], {"messages": bare})
                if stored:
                    until = min(until, time.monotonic() + self.link.proof_s)
                    await self.link.prove()
                    return
            except StoreUnavailable as error:
                if time.monotonic() >= until:
                    raise Undecided(str(error)) from error
                away(error)
                await asyncio.sleep(_LOOK_INTERVAL_S)
                continue
            if stored is False:
                raise pg_errors.UniqueViolation("some of these messages, or others, have their ids")
            try:
                await self._insert(group, beside)
                return
            except AnswerLost as error:
                lost.append(error.backend)
            except pg_errors.UniqueViolation as error:
                if error.diag.table_name != "messages":
                    raise
                # the message is there after all; the next look proves it

    async def _insert(
        self, group: list[NewMessage], beside: Companion | None, wake: bool = False
    ) -> None:
        put, values = _PUT[wake], {"messages": Messages(group), "rows": _Rows(group)}
        if beside:
            companion = (beside.statement, beside.params)
            await self.link.run_together([(put, values), companion])
        else:
            await self.link.run(put, values)

    async def chunks(self, parts: Iterable[tuple[int, int, bytes]]) -> None:
        """Store content in chunks, ahead of its messages, in one commit.

        Each part is the id of a message, the position of its first chunk and the octets. If this
        raises StoreUnavailable, it is open which chunks are in the database.
        """
        rows = b"".join((_COPY_HEADER, *_rows(parts), _COPY_END))
        async with (
            self.link.use() as connection,
            connection.cursor().copy(_SQL["chunks"]) as copy,
        ):
            await copy.write(rows)

    async def has_chunks(self, message_id: int, before: int, lost: list[Backend]) -> bool:
        """Return whether a write of chunks whose answer was lost has stored some of a message.

        The message had `before` chunks until then. The statements of `lost` are ended before the
        look, and leave the list after it. Raises StoreUnavailable.
        """
        await self.link.end_backends([*lost])
        ((number,),) = await self.link.look(_SQL["chunks_stored"], {"id": message_id})
        lost.clear()
        return int(number) > before

    async def drop_chunks(self, ids: list[int]) -> None:
        """Remove the chunks of messages that were not accepted. Raises StoreUnavailable."""
        await self.link.run(_SQL["drop_chunks"], {"ids": Bigints(ids)})


def _rows(parts: Iterable[tuple[int, int, bytes]]) -> Iterator[bytes | memoryview]:
    for message_id, first, content in parts:
        view = memoryview(content)
        for position, start in enumerate(range(0, len(content), CHUNK_OCTETS), first):
            chunk = view[start : start + CHUNK_OCTETS]
            yield _COPY_ROW.pack(3, 8, message_id, 4, position, len(chunk))
            yield chunk


class Messages(Composites[NewMessage]):
    """The messages of a group, as the type new_message has them."""

    name = "new_message"

    def written(self, octets: Callable[[str], bytes]) -> list[bytes]:
        """Return the members of each."""
        return [
            b"".join((
                _MESSAGE.pack(22, 20, 8, m.id, 20, 8, m.size, 21, 2, m.priority, 16, 1, m.utf8,
                    23, 4, m.chunks),
                text(m.trace, octets),
                _OCTETS.pack(17, len(m.body)),
                m.body,
                text(m.sender),  # refused if the database's encoding lacks a character
                text(domain_of(m.sender) if m.sender_domain is None else m.sender_domain, octets),
                text(m.on_failed, octets),
                text(m.message_id_header, octets),
                text(m.origin, octets),
                _options(m.options, octets) if m.options else _NO_OPTIONS,
            ))
            for m in self
        ]  # fmt: skip


class _Rows(Composites[NewMessage]):
    """The rows of a group of messages, as the type new_row has them."""

    name = "new_row"

    def written(self, octets: Callable[[str], bytes]) -> list[bytes]:
        rows = []
        for number, m in enumerate(self, 1):
            first = _ROW.pack(7, 23, 4, number)
            notify, orcpt = (m.options.notify, m.options.orcpt) if m.options else (None, None)
            rare = (m.holds, notify, orcpt) if m.holds or notify or orcpt else ()
            for n, (address, domain) in enumerate(m.recipients):
                rows.append(b"".join((
                    first,
                    text(address),  # as the sender
                    text(domain, octets),
                    jsonb(octets(m.metadata[n])) if m.metadata else _NO_METADATA,
                    *[text(each[n], octets) if each else NULL_TEXT for each in rare],
                    b"" if rare else _NOTHING_RARE,
                )))  # fmt: skip
        return rows


def _options(options: Options, octets: Callable[[str], bytes]) -> bytes:
    """Return the last members of a message; the template and its words are null."""
    return b"".join((
        text(options.tenant, octets),
        _BOOLEAN.pack(16, 1, options.once),
        text(options.submitted_by, octets),
        text(options.envid, octets),
        text(options.ret, octets),
        _BOOLEAN.pack(16, 1, options.requiretls),
        _BOOLEAN.pack(16, 1, options.tls_optional),
        null(TIMESTAMPTZ_OID) if options.send_at is None else instant(options.send_at),
        null(20),
        _NO_METADATA,
    ))  # fmt: skip


# A composite begins with the number of its members. Each member has its type, as pg_type numbers
# it, its length and its octets.
_MESSAGE = struct.Struct("!iIiqIiqIihIi?Iii")  # up to the chunks
_ROW = struct.Struct("!iIii")  # up to the number of its message
_OCTETS = struct.Struct("!Ii")
_BOOLEAN = struct.Struct("!Ii?")
_NO_METADATA = null(JSONB_OID)
_NOTHING_RARE = 3 * NULL_TEXT
_NO_OPTIONS = _options(Options(), str.encode)


def chunk_count(octets: int) -> int:
    """Return the number of chunks that content of this length makes."""
    return -(-octets // CHUNK_OCTETS)
