"""Columns of a group of rows as PostgreSQL arrays, in binary form.

psycopg determines the type of a list element by element. With a type that is known beforehand, an
array takes a third of that time. The statements of smtpd and queued have a dozen such parameters.
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
_NULL = _LENGTH.pack(-1)
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)  # of a timestamptz in binary form
_MICROSECOND = timedelta(microseconds=1)
_EMPTY = struct.Struct("!iiI")
_TEXT, _TIMESTAMPTZ = 25, 1184  # of pg_type


class Bigints(list[int]):
    """A bigint[] without nulls."""


class Integers(list[int]):
    """An integer[] without nulls."""


class Smallints(list[int]):
    """A smallint[] without nulls."""


class Reals(list[float]):
    """A real[] without nulls."""


class Booleans(list[bool]):
    """A boolean[] without nulls."""


class Instants(list[datetime]):
    """A timestamptz[] without nulls, of times with their zone."""


class Texts(list[str]):
    """A text[] without nulls."""


class OptionalTexts(list[str | None]):
    """A text[] that may have nulls."""


class Bytes(list[bytes]):
    """A bytea[] without nulls."""


class _ArrayDumper(Dumper):
    """Packs elements of `size` octets, or of any length if `size` is 0."""

    format = Format.BINARY
    element: ClassVar[int]
    size: ClassVar[int] = 0
    code: ClassVar[str] = ""  # of the module struct

    def dump(self, obj: Any) -> bytes:
        length = len(obj)
        if not length:
            return _EMPTY.pack(0, 0, self.element)
        header = _HEADER.pack(1, 0, self.element, length, 1)
        if self.element == _TEXT:
            obj = list(map(str.encode, obj))
        elif self.element == _TIMESTAMPTZ:
            obj = [(when - _EPOCH) // _MICROSECOND for when in obj]
        if self.size:
            flat = [self.size] * (2 * length)
            flat[1::2] = obj
            return header + struct.pack("!" + self.code * length, *flat)
        parts = [header] * (2 * length + 1)
        sizes = list(map(len, obj))
        pack = _LENGTHS.__getitem__ if max(sizes) < _SHORT else _LENGTH.pack
        parts[1::2] = list(map(pack, sizes))
        parts[2::2] = obj
        return b"".join(parts)


class _BigintsDumper(_ArrayDumper):
    oid = 1016
    element, size, code = 20, 8, "iq"


class _IntegersDumper(_ArrayDumper):
    oid = 1007
    element, size, code = 23, 4, "ii"


class _SmallintsDumper(_ArrayDumper):
    oid = 1005
    element, size, code = 21, 2, "ih"


class _RealsDumper(_ArrayDumper):
    oid = 1021
    element, size, code = 700, 4, "if"


class _BooleansDumper(_ArrayDumper):
    oid = 1000
    element, size, code = 16, 1, "i?"


class _InstantsDumper(_ArrayDumper):
    oid = 1185
    element, size, code = _TIMESTAMPTZ, 8, "iq"


class _BytesDumper(_ArrayDumper):
    oid = 1001
    element = 17


class _TextsDumper(_ArrayDumper):
    oid = 1009
    element = _TEXT


class _OptionalTextsDumper(Dumper):
    format = Format.BINARY
    oid = 1009

    def dump(self, obj: Any) -> bytes:
        if not obj:
            return _EMPTY.pack(0, 0, _TEXT)
        length = len(obj)
        octets = [b"" if text is None else text.encode() for text in obj]
        parts = [_HEADER.pack(1, 1, _TEXT, length, 1)] * (2 * length + 1)
        parts[1::2] = [
            _NULL if text is None else _LENGTH.pack(len(each))
            for text, each in zip(obj, octets, strict=True)
        ]
        parts[2::2] = octets
        return b"".join(parts)


def register(connection: AsyncConnection[Any]) -> None:
    """Make a connection accept these lists as parameters."""
    for kind, dumper in (
        (Bigints, _BigintsDumper),
        (Integers, _IntegersDumper),
        (Smallints, _SmallintsDumper),
        (Reals, _RealsDumper),
        (Booleans, _BooleansDumper),
        (Instants, _InstantsDumper),
        (Texts, _TextsDumper),
        (OptionalTexts, _OptionalTextsDumper),
        (Bytes, _BytesDumper),
    ):
        connection.adapters.register_dumper(kind, dumper)
