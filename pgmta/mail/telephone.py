"""Telephone numbers as recipients of SMS: E.164, and the segments of a text (3GPP TS 23.038)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pgmta.errors import AddressError

NUMBER_DOMAIN = "sms"
"""The domain of rows whose recipient is a telephone number; no mailbox has it."""

_NUMBER = re.compile(r"\+[1-9][0-9]{6,14}")
_SEPARATORS = re.compile(r"[-.() ]")  # visual separators of RFC 3966, section 5.1.1, and blanks
_DIGITS = re.compile(r"\+?[0-9]+")


def number_of(text: str) -> str:
    """Return a telephone number in E.164, as `+491701234567`. Raises AddressError.

    Blanks and visual separators are left out. A national number names no country, so it is refused.
    """
    plain = _SEPARATORS.sub("", text)
    if _NUMBER.fullmatch(plain):
        return plain
    if plain.startswith("+0"):
        raise AddressError(f"{text!r}: no country has the code 0")
    if plain.startswith("+") and _DIGITS.fullmatch(plain):
        raise AddressError(f"{text!r}: a telephone number has 7 to 15 digits")
    if _DIGITS.fullmatch(plain):
        raise AddressError(f"{text!r}: write the country code, such as +49 170 1234567")
    raise AddressError(f"{text!r} is no telephone number; write it such as +491701234567")


def is_number(text: str) -> bool:
    """Return whether a text is meant as a telephone number: digits, and no @."""
    return "@" not in text and bool(_DIGITS.fullmatch(_SEPARATORS.sub("", text)))


_BASIC = frozenset(
    "@£$¥èéùìòÇ\nØø\rÅåΔ_ΦΓΛΩΠΨΣΘΞÆæßÉ !\"#¤%&'()*+,-./0123456789:;<=>?¡ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    "ÄÖÑÜ§¿abcdefghijklmnopqrstuvwxyzäöñüà"
)
_EXTENDED = frozenset("\f^{}\\[~]|€")  # each takes two septets
_WHOLE_SEPTETS, _SEPTETS = 160, 153
_WHOLE_UNITS, _UNITS = 70, 67


@dataclass(frozen=True, slots=True)
class Segments:
    """How a text is sent: the number of its segments, and the characters that need UCS-2.

    A text of the alphabet GSM 7 bit has 160 septets in one segment, or 153 in each of several. Any
    other has 70 or 67 units of UTF-16.
    """

    number: int
    length: int  # septets or units
    others: str = ""  # the first characters beyond GSM 7 bit

    @property
    def alphabet(self) -> str:
        """The name of the alphabet."""
        return "UCS-2" if self.others else "GSM-7"


def segments_of(text: str) -> Segments:
    """Return the segments of a text; no character is in two of them."""
    others = "".join(dict.fromkeys(c for c in text if c not in _BASIC and c not in _EXTENDED))
    if others:
        sizes = [1 + (char > "\uffff") for char in text]
        most, each = _WHOLE_UNITS, _UNITS
    else:
        sizes = [1 + (char in _EXTENDED) for char in text]
        most, each = _WHOLE_SEPTETS, _SEPTETS
    length = sum(sizes)
    if length <= most:
        return Segments(1, length, others[:10])
    number, left = 0, 0
    for size in sizes:
        if size > left:
            number, left = number + 1, each
        left -= size
    return Segments(number, length, others[:10])
