"""Parts of secrets in what a next hop says, however it spells them (pure)."""

from __future__ import annotations

import html
import re
import unicodedata
from base64 import b32encode, b64decode, b64encode
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from urllib.parse import unquote_plus

LEFT_OUT = "(left out)"

_PART_CHARACTERS = 6
"""So many in a row give a secret away. Providers show the last 4 of a key on purpose."""

_MAX_NESTED_ENCODINGS = 3  # of encodings within each other
_MAX_VIEWS = 40  # of a text, so that none takes long
_OCTET = re.compile(r"[\\0]x([0-9A-Fa-f]{2})")
_CHARACTER = re.compile(
    r"(?:\\u\{|[Uu]\+)0*([0-9A-Fa-f]{1,5})\}?|[\\%]u([0-9A-Fa-f]{4})|\\U000([0-9A-Fa-f]{5})"
)
_TAG = re.compile(r"<[^<>]*>")
_HEX = re.compile(r"(?:[0-9A-Fa-f]{2}){6,}")
_BASE64 = re.compile(r"[0-9A-Za-z+/_-]{8,}")
_QUOTED = re.compile(r"=([0-9A-Fa-f]{2})")
_PREFIX = re.compile(r"(?<![0-9A-Za-z])0[xX](?=[0-9A-Fa-f]{2})")
_SIGNS = re.compile(r"[\W_]+")


class SecretParts:
    """Says whether a text has a part of one of these secrets.

    It compares without case, blanks, signs and tags. It knows the octets as numbers, base64 and
    base32, characters as URLs, HTML, programs and quoted-printable write them, and these within
    each other. It does not know words between the letters, other orders and other codes.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        found: set[str] = set()
        for secret in secrets:
            found.update(_windows(_plain(secret)))
            for spelled in {secret, secret.lower(), secret.upper()}:
                found.update(_octet_forms(spelled.encode("utf-8", "surrogatepass")))
        found.discard("")
        self._least = min(map(len, found), default=0)
        self._by_start: dict[str, tuple[str, ...]] = {}
        for form in found:
            start = form[: self._least]
            self._by_start[start] = (*self._by_start.get(start, ()), form)

    def hide(self, text: str) -> str:
        """Return the text, or that it was left out."""
        return LEFT_OUT if self.are_in(text) else text

    def are_in(self, text: str) -> bool:
        """Return whether a part of a secret is in a text."""
        return bool(self._by_start) and any(self._found(view) for view in _views(text))

    def _found(self, text: str) -> bool:
        least = self._least
        for at in range(len(text) - least + 1):
            forms = self._by_start.get(text[at : at + least])
            if forms and text.startswith(forms, at):
                return True
        return False


def _views(text: str) -> Iterator[str]:
    """Yield a text as it is, and decoded."""
    views = {text: 0}  # each with the number of encodings that were taken off
    waiting = deque(views)
    while waiting:
        view = waiting.popleft()
        yield _plain(view)
        for decoded in _decoded(view) if views[view] < _MAX_NESTED_ENCODINGS else ():
            if decoded not in views and len(views) < _MAX_VIEWS:
                views[decoded] = views[view] + 1
                waiting.append(decoded)


def _decoded(text: str) -> Iterator[str]:
    """Yield a text with one encoding less, for each that may be in it."""
    if "%" in text or "+" in text or "&" in text or "\\" in text or "0x" in text:
        characters = _CHARACTER.sub(_character, html.unescape(text))
        yield unquote_plus(_OCTET.sub(r"%\1", characters))
    if "=" in text:
        yield unquote_plus(_QUOTED.sub(r"%\1", text))
    if "<" in text:
        yield _TAG.sub("", text)
    # text that has no such encoding becomes noise, which does no harm
    for runs, decode in ((_HEX, bytes.fromhex), (_BASE64, _octets_of)):
        octets = b" ".join(map(decode, runs.findall(text)))
        if octets:
            yield octets.decode("utf-8", "ignore")
        if b"\0" in octets:  # UTF-16 of western letters
            yield octets.replace(b"\0", b"").decode("latin-1")


def _character(escape: re.Match[str]) -> str:
    return chr(int(escape[escape.lastindex or 0], 16))


def _octets_of(run: str) -> bytes:
    """Return the octets of base64 that may have been cut."""
    run = run[:-1] if len(run) % 4 == 1 else run
    return b64decode(run + "=" * (-len(run) % 4), b"-_" if "-" in run or "_" in run else None)


def _plain(text: str) -> str:
    """Return letters and digits alone, in lower case."""
    return _SIGNS.sub("", _PREFIX.sub("", unicodedata.normalize("NFKC", text))).lower()


def _windows[T: (str, bytes)](whole: T) -> Iterator[T]:
    """Yield the parts of a text; all of it if it is short."""
    for at in range(max(len(whole) - _PART_CHARACTERS, 0) + 1):
        yield whole[at : at + _PART_CHARACTERS]


def _octet_forms(octets: bytes) -> Iterator[str]:
    for part in _windows(octets):
        yield part.hex()
        yield "".join(map(str, part))
        yield "".join(f"{octet:03o}" for octet in part)
        for encode, bits, places in ((b64encode, 6, 3), (b32encode, 5, 5)):
            for before in range(places):
                yield _plain(_inner(encode, bits, part, before))


def _inner(encode: Callable[[bytes], bytes], bits: int, part: bytes, before: int) -> str:
    """Return the characters that a part alone makes, behind that many octets."""
    first, last = -(-8 * before // bits), 8 * (before + len(part)) // bits
    return encode(bytes(before) + part)[first:last].decode()
