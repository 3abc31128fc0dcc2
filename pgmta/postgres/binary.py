"""Columns of a group of rows as PostgreSQL arrays, in binary form.

psycopg determines the type of a list element by element. With a type that is known beforehand, an
array takes a third of that time. The statements of smtpd and queued have a dozen such parameters.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from psycopg import AsyncConnection
from psycopg.abc import AdaptContext
from psycopg.adapt import Dumper
from psycopg.pq import Format

from pgmta.postgres.link_connection import LinkConnection

# Of an array: dimensions, whether there are nulls, element type, length, lower bound.
_HEADER = struct.Struct("!iiIii")
_LENGTH = struct.Struct("!i")
_PACKED_LENGTHS = 256  # elements of fewer octets need no packing of their length
_PACKED_LENGTH = [_LENGTH.pack(length) for length in range(_PACKED_LENGTHS)]
_NULL = _LENGTH.pack(-1)
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)  # of a timestamptz in binary form
_MICROSECOND = timedelta(microseconds=1)
_EMPTY = struct.Struct("!iiI")
_TEXT_OID, _TIMESTAMPTZ_OID = 25, 1184  # in pg_type


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

    oid, element, size, code = 1185, _TIMESTAMPTZ_OID, 8, "iq"


class Texts(_Array[str]):
    """A text[] without nulls; `?` stands for characters that the database's encoding lacks."""

    oid, element = 1009, _TEXT_OID


class AddressTexts(_Array[str]):
    """The same, but PostgreSQL refuses the statement for such a character: mail goes to them."""

    oid, element = 1009, _TEXT_OID


class OptionalTexts(_Array[str | None]):
    """The same as Texts, with nulls."""

    oid, element = 1009, _TEXT_OID


class Bytes(_Array[bytes]):
    """A bytea[] without nulls."""

    oid, element = 1001, 17


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
        self._octets = str.encode if cls is AddressTexts or not codec else _fitting(codec)

    def dump(self, obj: Any) -> bytes:
        length, kind = len(obj), self.cls
        if not length:
            return _EMPTY.pack(0, 0, kind.element)
        header = _HEADER.pack(1, kind is OptionalTexts, kind.element, length, 1)
        if kind.size:
            if kind is Instants:
                obj = [(when - _EPOCH) // _MICROSECOND for when in obj]
            flat = [kind.size] * (2 * length)
            flat[1::2] = obj
            return header + struct.pack("!" + kind.code * length, *flat)
        parts = [header] * (2 * length + 1)
        if kind is OptionalTexts:
            octets = [b"" if text is None else self._octets(text) for text in obj]
            parts[1::2] = [
                _NULL if text is None else _LENGTH.pack(len(each))
                for text, each in zip(obj, octets, strict=True)
            ]
        else:
            octets = list(map(self._octets, obj)) if kind.element == _TEXT_OID else obj
            sizes = list(map(len, octets))
            pack = _PACKED_LENGTH.__getitem__ if max(sizes) < _PACKED_LENGTHS else _LENGTH.pack
            parts[1::2] = list(map(pack, sizes))
        parts[2::2] = octets
        return b"".join(parts)


_DUMPERS = {
    kind: type(f"{kind.__name__}Dumper", (_ArrayDumper,), {"oid": kind.oid})
    for kind in _Array.__subclasses__()
}


def register(connection: AsyncConnection[Any]) -> None:
    """Make a connection accept these lists as parameters."""
    for kind, dumper in _DUMPERS.items():
        connection.adapters.register_dumper(kind, dumper)
