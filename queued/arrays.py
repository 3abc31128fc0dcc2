"""Columns of a group of rows as PostgreSQL arrays, in binary form.

psycopg finds out the type of a list element by element. Where it is known, this takes a third of
the time; the statements of smtpd and queued have a dozen of such parameters each.
"""

from __future__ import annotations

import struct
from typing import Any, ClassVar

from psycopg import AsyncConnection
from psycopg.adapt import Dumper
from psycopg.pq import Format

_HEADER = struct.Struct("!iiIii")  # dimensions, whether there are nulls, element type, length, base
_LENGTH = struct.Struct("!i")
_EMPTY = struct.Struct("!iiI")


class Bigints(list[int]):
    """A bigint[] without nulls."""


class Texts(list[str]):
    """A text[] without nulls."""


class Bytes(list[bytes]):
    """A bytea[] without nulls."""


class _ArrayDumper(Dumper):
    format = Format.BINARY
    element: ClassVar[int]

    def _join(self, parts: list[bytes], length: int) -> bytes:
        if not length:
            return _EMPTY.pack(0, 0, self.element)
        return _HEADER.pack(1, 0, self.element, length, 1) + b"".join(parts)


class _BigintsDumper(_ArrayDumper):
    oid = 1016
    element = 20

    def dump(self, obj: Bigints) -> bytes:
        flat = [8] * (2 * len(obj))
        flat[1::2] = obj
        return self._join([struct.pack("!" + "iq" * len(obj), *flat)], len(obj))


class _BytesDumper(_ArrayDumper):
    oid = 1001
    element = 17

    def dump(self, obj: Bytes) -> bytes:
        parts = [b""] * (2 * len(obj))
        parts[0::2] = [_LENGTH.pack(len(value)) for value in obj]
        parts[1::2] = obj
        return self._join(parts, len(obj))


class _TextsDumper(_BytesDumper):
    oid = 1009
    element = 25

    def dump(self, obj: Any) -> bytes:
        return super().dump(Bytes([value.encode() for value in obj]))


def register(connection: AsyncConnection[Any]) -> None:
    """Let a connection take these as parameters."""
    for kind, dumper in (
        (Bigints, _BigintsDumper),
        (Texts, _TextsDumper),
        (Bytes, _BytesDumper),
    ):
        connection.adapters.register_dumper(kind, dumper)
