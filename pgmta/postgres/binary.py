"""Columns of a group of rows, or the rows themselves, as PostgreSQL arrays in binary form.

psycopg determines the type of a list element by element. With a type that is known beforehand, an
array takes a third of that time. The statements of smtpd and queued have a dozen such parameters.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, cast

from psycopg import AsyncConnection
from psycopg.abc import AdaptContext
from psycopg.adapt import Dumper
from psycopg.errors import FeatureNotSupported
from psycopg.pq import Format

from pgmta.postgres.link_connection import LinkConnection

# Of an array: dimensions, whether there are nulls, element type, length, lower bound.
_HEADER = struct.Struct("!iiIii")
_LENGTH = struct.Struct("!i")
_PACKED_LENGTHS = 256  # elements of fewer octets need no packing of their length
_PACKED_LENGTH = [_LENGTH.pack(length) for length in range(_PACKED_LENGTHS)]
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)  # of a timestamptz in binary form
_MICROSECOND = timedelta(microseconds=1)
_EMPTY = struct.Struct("!iiI")
_TEXT_OID, TIMESTAMPTZ_OID, JSONB_OID = 25, 1184, 3802  # in pg_type
_MEMBER, _INSTANT = struct.Struct("!Ii"), struct.Struct("!Iiq")  # type, length (and value)
_PACKED_TEXTS = [_MEMBER.pack(_TEXT_OID, length) for length in range(_PACKED_LENGTHS)]
NULL_TEXT = _MEMBER.pack(_TEXT_OID, -1)
_JSONB_VERSION = b"\1"


class _Array[T](list[T]):
    """Elements of `size` octets in the form `code` of the module struct, or of any length."""

    oid: ClassVar[int]
    element: ClassVar[int]
    size: ClassVar[int] = 0
    code: ClassVar[str] = ""


class Bigints(_Array[int]):
    """A bigint[] without nulls."""

    oid, element, size, code = 1016, 20, 8, "iq"


class Integers(_Array[int]):
    """An integer[] without nulls."""

    oid, element, size, code = 1007, 23, 4, "ii"


class Smallints(_Array[int]):
    """A smallint[] without nulls."""

    oid, element, size, code = 1005, 21, 2, "ih"


class Reals(_Array[float]):
    """A real[] without nulls."""

    oid, element, size, code = 1021, 700, 4, "if"


class Booleans(_Array[bool]):
    """A boolean[] without nulls."""

    oid, element, size, code = 1000, 16, 1, "i?"


class Instants(_Array[datetime]):
    """A timestamptz[] without nulls, of times with their zone."""

    oid, element, size, code = 1185, TIMESTAMPTZ_OID, 8, "iq"


class Texts(_Array[str]):
    """A text[] without nulls; `?` stands for characters that the database's encoding lacks."""

    oid, element = 1009, _TEXT_OID


class Bytes(_Array[bytes]):
    """A bytea[] without nulls."""

    oid, element = 1001, 17


class Composites[T](list[T]):
    """An array of a composite type of the schema, whose oid each connection has learned."""

    name: ClassVar[str]

    def written(self, octets: Callable[[str], bytes]) -> list[bytes]:
        """Return each value: the number of its members, and of each its type, length and octets.

        `octets` writes a text with `?` for characters that the database's encoding lacks.
        """
        raise NotImplementedError


COMPOSITES = ("new_message", "new_row")
"""Names of the types: another database has other oids."""


def null(oid: int) -> bytes:
    """Return a member of this type without a value."""
    return _MEMBER.pack(oid, -1)


def text(value: str | None, octets: Callable[[str], bytes] = str.encode) -> bytes:
    """Return a member of type text, null for None."""
    if value is None:
        return NULL_TEXT
    written = octets(value)
    length = len(written)
    if length < _PACKED_LENGTHS:
        return _PACKED_TEXTS[length] + written
    return _MEMBER.pack(_TEXT_OID, length) + written


def jsonb(octets: bytes) -> bytes:
    """Return a member of type jsonb."""
    return _MEMBER.pack(JSONB_OID, len(octets) + 1) + _JSONB_VERSION + octets


def instant(when: datetime) -> bytes:
    """Return a member of type timestamptz."""
    return _INSTANT.pack(TIMESTAMPTZ_OID, 8, (when - _EPOCH) // _MICROSECOND)


def _fitting(codec: str) -> Callable[[str], bytes]:
    def encode(text: str) -> bytes:
        return text.encode(codec, "replace").decode(codec).encode()

    return encode


class _ArrayDumper(Dumper):
    format = Format.BINARY
    cls: type[_Array[Any]]

    def __init__(self, cls: type, context: AdaptContext | None = None) -> None:
        super().__init__(cls, context)
        codec = self.connection.codec if isinstance(self.connection, LinkConnection) else ""
        self._octets = _fitting(codec) if codec else str.encode

    def dump(self, obj: Any) -> bytes:
        length, kind = len(obj), self.cls
        if not length:
            return _EMPTY.pack(0, 0, kind.element)
        header = _HEADER.pack(1, 0, kind.element, length, 1)
        if kind.size:
            if kind is Instants:
                obj = [(when - _EPOCH) // _MICROSECOND for when in obj]
            flat = [kind.size] * (2 * length)
            flat[1::2] = obj
            return header + struct.pack("!" + kind.code * length, *flat)
        parts = [header] * (2 * length + 1)
        octets = list(map(self._octets, obj)) if kind.element == _TEXT_OID else obj
        sizes = list(map(len, octets))
        pack = _PACKED_LENGTH.__getitem__ if max(sizes) < _PACKED_LENGTHS else _LENGTH.pack
        parts[1::2] = list(map(pack, sizes))
        parts[2::2] = octets
        return b"".join(parts)


class _CompositesDumper(_ArrayDumper):
    def dump(self, obj: Composites[Any]) -> bytes:
        known = cast(LinkConnection, self.connection).composites
        if obj.name not in known:
            # the schema was not there when the connection was made: the link makes a new one
            raise FeatureNotSupported(f"the database has no type pgmta.{obj.name}")
        values = obj.written(self._octets)
        if not values:
            return _EMPTY.pack(0, 0, known[obj.name])
        parts = [_HEADER.pack(1, 0, known[obj.name], len(values), 1)] * (2 * len(values) + 1)
        parts[1::2] = map(_LENGTH.pack, map(len, values))
        parts[2::2] = values
        return b"".join(parts)


_DUMPERS: dict[type, type[Dumper]] = {
    kind: type(f"{kind.__name__}Dumper", (_ArrayDumper,), {"oid": kind.oid})
    for kind in _Array.__subclasses__()
}
_DUMPERS[Composites] = _CompositesDumper


def register(connection: AsyncConnection[Any]) -> None:
    """Make a connection accept these lists as parameters."""
    for kind, dumper in _DUMPERS.items():
        connection.adapters.register_dumper(kind, dumper)
