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
_NUMBER_START = re.compile(r"[ (]*\+|tel:", re.IGNORECASE)  # RFC 3966


def number_of(text: str) -> str:
    """Return a telephone number in E.164, as `+491701234567`. Raises AddressError.

    Blanks and visual separators are left out. A national number names no country, so it is refused.
    """
    plain = _unseparated(text)
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
    """Return whether a text is meant as a telephone number: no @, and digits or a + in front."""
    return "@" not in text and bool(
        _NUMBER_START.match(text) or _DIGITS.fullmatch(_unseparated(text))
    )


def _unseparated(text: str) -> str:
    return _SEPARATORS.sub("", text)


# the basic character table and its extension (3GPP TS 23.038, section 6.2.1)
_BASIC_CHARACTERS = (
    "@£$¥èéùìòÇ\nØø\rÅåΔ_ΦΓΛΩΠΨΣΘΞÆæßÉ !\"#¤%&'()*+,-./0123456789:;<=>?¡ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    "ÄÖÑÜ§¿abcdefghijklmnopqrstuvwxyzäöñüà"
)
_EXTENSION_CHARACTERS = "\f^{}\\[~]|€"  # each takes two septets
_GSM_CHARACTERS = frozenset(_BASIC_CHARACTERS + _EXTENSION_CHARACTERS)
_TWO_SEPTETS = re.compile(f"[{re.escape(_EXTENSION_CHARACTERS)}]")
_TWO_UNITS = re.compile("[\U00010000-\U0010ffff]")
_FIRST_HALF = "\U0010ffff"  # of a character of two septets or units; no segment ends with it
# Each of several segments has a header that tells their order (3GPP TS 23.040, section 9.2.3.24).
_ONLY_SEGMENT_SEPTETS, _SEGMENT_SEPTETS = 160, 153
_ONLY_SEGMENT_UNITS, _SEGMENT_UNITS = 70, 67
_MAX_NAMED_OTHERS = 10  # characters beyond GSM 7 bit that a warning lists


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

    def __str__(self) -> str:
        unit = "units" if self.others else "septets"
        why = f", because of {' '.join(self.others)}" if self.others else ""
        number = f"{self.number} segment{'s' if self.number > 1 else ''}"
        return f"{number}, {self.length} {unit} of {self.alphabet}{why}"


def segments_of(text: str) -> Segments:
    """Return the segments of a text; no character is in two of them."""
    others = ""
    if beyond := set(text) - _GSM_CHARACTERS:
        others = "".join(sorted(beyond, key=text.index)[:_MAX_NAMED_OTHERS])
        units, only, each = (
            _TWO_UNITS.sub(_FIRST_HALF + " ", text),
            _ONLY_SEGMENT_UNITS,
            _SEGMENT_UNITS,
        )
    else:
        units, only, each = (
            _TWO_SEPTETS.sub(_FIRST_HALF + " ", text),
            _ONLY_SEGMENT_SEPTETS,
            _SEGMENT_SEPTETS,
        )
    length = len(units)
    if length <= only:
        return Segments(1, length, others)
    number = start = 0
    while start < length:
        number, start = number + 1, start + each
        if start < length and units[start - 1] == _FIRST_HALF:
            start -= 1
    return Segments(number, length, others)
