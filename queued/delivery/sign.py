"""Signatures of DKIM (RFC 6376, RFC 8463, RFC 8301), with the canonical form relaxed/relaxed."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable
from functools import lru_cache

from queued.config import SIGNED
from queued.delivery.canonical import Fields, fields_of, relaxed_field
from queued.delivery.signing_key import SigningKey

_WANTED = {name.lower().encode(): name for name in SIGNED}
_LINE = 72  # characters of a line of base64 or field names
MOST = 1000
"""Fields that a signature covers, at most: it names each of them."""


class SignedHeader:
    """The fields of a header that a signature covers, in canonical form.

    `header` are whole lines. The fields in `oversign` are listed once more than they are there:
    one that comes later breaks the signature.
    """

    __slots__ = ("_data", "_names", "fields")

    def __init__(self, header: bytes) -> None:
        self.fields: Fields = fields_of(header, _WANTED)
        """The fields by name in lower case."""
        self._names = ""
        self._data = b""

    @property
    def size(self) -> int:
        """How many fields a signature would cover."""
        return sum(map(len, self.fields.values()))

    def cover(self, oversign: frozenset[bytes]) -> tuple[str, bytes]:
        """Return the value of the tag `h=`, folded, and the canonical data for it."""
        if self._data or self._names:
            return self._names, self._data
        names: list[str] = []
        data: list[bytes] = []
        fields = self.fields
        for key, name in _WANTED.items():
            if values := fields.get(key):
                # the last field is the first to be signed (section 5.4.2)
                for value in reversed(values):
                    data.append(relaxed_field(key, value))
                    names.append(name)
            if key in oversign:
                names.append(name)
        self._names, self._data = _listed(tuple(names)), b"".join(data)
        return self._names, self._data


@lru_cache(maxsize=256)
def _listed(names: tuple[str, ...]) -> str:
    lines = [""]
    for name in names:
        if len(lines[-1]) + len(name) > _LINE:
            lines.append("")
        lines[-1] += f"{name}:"
    return "\r\n\t ".join(lines)[:-1]


def sign(
    keys: Iterable[SigningKey],
    header: SignedHeader,
    body_hash: bytes,
    *,
    oversign: frozenset[bytes],
    now: float,
    expire: float | None = None,
) -> bytes:
    """Return a field DKIM-Signature for each key, with CRLF.

    The signatures count from `now`, in seconds since 1970, for `expire` seconds. Raises KeyProblem
    for a key that can't be used.
    """
    names, data = header.cover(oversign)
    hashed = b64encode(body_hash).decode()
    times = f"t={int(now)};" + (f" x={int(now + expire)};" if expire else "")
    signed = []
    for key in keys:
        key.load()
        value = (
            f" v=1; a={key.type}-sha256; c=relaxed/relaxed; d={key.domain};\r\n"
            f"\ts={key.selector}; {times}\r\n\th={names};\r\n\tbh={hashed};\r\n\tb="
        )
        text = value.encode()
        canonical = b"dkim-signature:" + b" ".join(text.split())
        signature = b64encode(key.sign(data + canonical)).decode()
        lines = (signature[at : at + _LINE] for at in range(0, len(signature), _LINE))
        signed.append(b"DKIM-Signature:" + text + "\r\n\t ".join(lines).encode() + b"\r\n")
    return b"".join(signed)
