"""Signatures of DKIM (RFC 6376, RFC 8463, RFC 8301), with the canonical form relaxed/relaxed."""

from __future__ import annotations

from binascii import b2a_base64
from functools import lru_cache

from queued.config import SIGNED
from queued.signing.canonical import Fields, fields_of, relaxed_fields
from queued.signing.signing_key import SigningKey

_WANTED = {name.lower().encode(): name for name in SIGNED}
_PLACES = {name: place for place, name in enumerate(_WANTED)}
_LINE = 72  # characters of a line of base64 or field names
MOST = 1000
"""Fields that a signature covers, at most: it names each of them."""


class SignedHeader:
    """The fields of a header that a signature covers, in canonical form.

    `header` are whole lines. The fields in `oversign` are listed once more than they are there:
    one that comes later breaks the signature.
    """

    __slots__ = ("_data", "_names", "_oversign", "fields")

    def __init__(self, header: bytes, oversign: frozenset[bytes]) -> None:
        self.fields: Fields = fields_of(header, _WANTED)
        """The fields by name in lower case."""
        self._oversign = oversign
        self._names = ""
        self._data = b""

    @property
    def size(self) -> int:
        """How many fields a signature would cover."""
        return sum(map(len, self.fields.values()))

    def cover(self) -> tuple[str, bytes]:
        """Return the value of the tag `h=`, folded, and the canonical data for it."""
        if self._data or self._names:
            return self._names, self._data
        fields = self.fields
        there = sorted(fields, key=_PLACES.__getitem__)
        # the last field is the first to be signed (section 5.4.2)
        signed = [(key, value) for key in there for value in reversed(fields[key])]
        numbers = tuple([(key, len(fields[key])) for key in there])
        self._names, self._data = _listed(numbers, self._oversign), relaxed_fields(signed)
        return self._names, self._data


@lru_cache(maxsize=256)
def _listed(numbers: tuple[tuple[bytes, int], ...], oversign: frozenset[bytes]) -> str:
    """Return the value of `h=` for fields that are there so often."""
    times = dict(numbers)
    lines = [""]
    for name in (n for k, n in _WANTED.items() for _ in range(times.get(k, 0) + (k in oversign))):
        if len(lines[-1]) + len(name) > _LINE:
            lines.append("")
        lines[-1] += f"{name}:"
    return "\r\n\t ".join(lines)[:-1]


def sign(
    key: SigningKey,
    header: SignedHeader,
    body_hash: bytes,
    *,
    now: float,
    expire: float | None = None,
) -> bytes:
    """Return the field DKIM-Signature by a key, with CRLF.

    The signature counts from `now`, in seconds since 1970, for `expire` seconds. Raises KeyProblem
    for a key that can't be used.
    """
    names, data = header.cover()
    hashed = b2a_base64(body_hash, newline=False)
    times = b"t=%d;" % now + (b" x=%d;" % (now + expire) if expire else b"")
    key.load()
    tags = _tags(key.type, key.domain, key.selector, names)
    canonical = tags.canonical(times, hashed)
    signature = b2a_base64(key.sign(data + canonical), newline=False)
    lines = [signature[at : at + _LINE] for at in range(0, len(signature), _LINE)]
    return tags.text(times, hashed) + b"\r\n\t ".join(lines) + b"\r\n"


class _Tags:
    """The tags of a signature that are the same in many, around its times and the body hash."""

    __slots__ = ("_canonical", "_text")

    def __init__(self, kind: str, domain: str, selector: str, names: str) -> None:
        first = f" v=1; a={kind}-sha256; c=relaxed/relaxed; d={domain};\r\n\ts={selector}; "
        later = f"\r\n\th={names};\r\n\tbh="
        self._text = f"DKIM-Signature:{first}".encode(), later.encode()
        self._canonical = (
            f"dkim-signature:{' '.join(first.split())} ".encode(),
            f" {' '.join(later.split())}".encode(),
        )

    def text(self, times: bytes, hashed: bytes) -> bytes:
        """Return the field up to the value of `b=`."""
        first, later = self._text
        return first + times + later + hashed + b";\r\n\tb="

    def canonical(self, times: bytes, hashed: bytes) -> bytes:
        """Return it in canonical form (section 3.7)."""
        first, later = self._canonical
        return first + times + later + hashed + b"; b="


_tags = lru_cache(maxsize=1024)(_Tags)
