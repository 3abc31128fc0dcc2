"""Columns of a group of rows as PostgreSQL arrays, in binary form.

psycopg finds out the type of a list element by element. Where it is known, this takes a third of
the time; the statements of smtpd and queued have a dozen of such parameters each.
"""

from __future__ import annotations

import struct
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from psycopg import AsyncConnection
from psycopg.adapt import Dumper
from psycopg.pq import Format

_HEADER = struct.Struct("!iiIii")  # dimensions, whether there are nulls, element type, length, base
_LENGTH = struct.Struct("!i")
_SHORT = 256  # octets of an element whose length need not be packed anew
_LENGTHS = [_LENGTH.pack(length) for length in range(_SHORT)]
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)  # of a timestamptz in binary form
_MICROSECOND = timedelta(microseconds=1)
_EMPTY = struct.Struct("!iiI")


class Bigints(list[int]):
    """A bigint[] without nulls."""


class Integers(list[int]):
    """An integer[] without nulls."""


class Smallints(list[int]):
    """A smallint[] without nulls."""


class Booleans(list[bool]):
    """A boolean[] without nulls."""


class Instants(list[datetime]):
    """A timestamptz[] without nulls, of times with their zone."""


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


class _FixedDumper(_ArrayDumper):
    size: ClassVar[int]  # octets of an element
    code: ClassVar[str]  # of the module struct

    def dump(self, obj: list[int]) -> bytes:
        flat = [self.size] * (2 * len(obj))
        flat[1::2] = obj
        return self._join([struct.pack("!" + self.code * len(obj), *flat)], len(obj))


class _BigintsDumper(_FixedDumper):
    oid = 1016
    element, size, code = 20, 8, "iq"


class _IntegersDumper(_FixedDumper):
    oid = 1007
    element, size, code = 23, 4, "ii"


class _SmallintsDumper(_FixedDumper):
    oid = 1005
    element, size, code = 21, 2, "ih"


class _BooleansDumper(_FixedDumper):
    oid = 1000
    element, size, code = 16, 1, "i?"


class _InstantsDumper(_FixedDumper):
    oid = 1185
    element, size, code = 1184, 8, "iq"

    def dump(self, obj: Any) -> bytes:
        return super().dump([(when - _EPOCH) // _MICROSECOND for when in obj])


class _BytesDumper(_ArrayDumper):
    oid = 1001
    element = 17

    def dump(self, obj: Bytes) -> bytes:
        parts = [b""] * (2 * len(obj))
        parts[0::2] = [
            _LENGTHS[length] if length < _SHORT else _LENGTH.pack(length)
            for length in map(len, obj)
        ]
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
        (Integers, _IntegersDumper),
        (Smallints, _SmallintsDumper),
        (Booleans, _BooleansDumper),
        (Instants, _InstantsDumper),
        (Texts, _TextsDumper),
        (Bytes, _BytesDumper),
    ):
        connection.adapters.register_dumper(kind, dumper)
