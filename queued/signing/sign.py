"""Signatures of DKIM (RFC 6376, RFC 8463, RFC 8301), with the canonical form relaxed/relaxed."""

from __future__ import annotations

from binascii import b2a_base64
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from queued.config import SIGNED_FIELDS
from queued.signing.canonical import Fields, fields_of, relaxed_fields

if TYPE_CHECKING:
    from queued.signing.signing_key import SigningKey

_SIGNED_NAMES = {name.lower().encode(): name for name in SIGNED_FIELDS}
_ORDER = {name: place for place, name in enumerate(_SIGNED_NAMES)}
_LINE_CHARACTERS = 72  # of base64 or of field names
MAX_SIGNED_FIELDS = 1000
"""A signature names each field that it covers."""


class SignedHeader:
    """The fields of a header that a signature covers, in canonical form.

    `header` are whole lines. The fields in `oversign` are listed once more than they are there:
    one that comes later breaks the signature.
    """

    def __init__(self, header: bytes, oversign: frozenset[bytes]) -> None:
        self.fields: Fields = fields_of(header, _SIGNED_NAMES)
        """The fields by name in lower case."""
        self._oversign = oversign

    @property
    def size(self) -> int:
        """How many fields a signature would cover."""
        return sum(map(len, self.fields.values()))

    @cached_property
    def covered(self) -> tuple[str, bytes]:
        """Return the value of the tag `h=`, folded, and the canonical data for it."""
        fields = self.fields
        there = sorted(fields, key=_ORDER.__getitem__)
        # of fields with one name, the last one is signed first (RFC 6376, section 5.4.2)
        signed = [(key, value) for key in there for value in reversed(fields[key])]
        numbers = tuple([(key, len(fields[key])) for key in there])
        return _listed(numbers, self._oversign), relaxed_fields(signed)


@lru_cache(maxsize=256)
def _listed(numbers: tuple[tuple[bytes, int], ...], oversign: frozenset[bytes]) -> str:
    """Return the value of `h=` for fields that are there so often."""
    times = dict(numbers)
    lines = [""]
    for name in (
        n for k, n in _SIGNED_NAMES.items() for _ in range(times.get(k, 0) + (k in oversign))
    ):
        if len(lines[-1]) + len(name) > _LINE_CHARACTERS:
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
    names, data = header.covered
    hashed = b2a_base64(body_hash, newline=False)
    times = b"t=%d;" % now + (b" x=%d;" % (now + expire) if expire else b"")
    key.load()
    # the field in canonical form (RFC 6376, section 3.7), and as it is sent
    canonical, first, later = _tags(key.type, key.domain, key.selector, names)
    signed = data + canonical[0] + times + canonical[1] + hashed + b"; b="
    signature = b2a_base64(key.sign(signed), newline=False)
    lines = [
        signature[at : at + _LINE_CHARACTERS] for at in range(0, len(signature), _LINE_CHARACTERS)
    ]
    start = first + times + later + hashed + b";\r\n\tb="
    return start + b"\r\n\t ".join(lines) + b"\r\n"


@lru_cache(maxsize=1024)
def _tags(
    kind: str, domain: str, selector: str, names: str
) -> tuple[tuple[bytes, bytes], bytes, bytes]:
    """Return the tags before the times and after them, in canonical form and as they are sent."""
    first = f" v=1; a={kind}-sha256; c=relaxed/relaxed; d={domain};\r\n\ts={selector}; "
    later = f"\r\n\th={names};\r\n\tbh="
    canonical = f"dkim-signature:{' '.join(first.split())} ", f" {' '.join(later.split())}"
    return (
        (canonical[0].encode(), canonical[1].encode()),
        f"DKIM-Signature:{first}".encode(),
        later.encode(),
    )
