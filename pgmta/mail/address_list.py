"""Where the addresses are in the value of an address field (RFC 5322, sections 3.4 and 4.4; pure).

The values come from anywhere. Parts of a list that are no addresses are left out. Only a value
whose quotes, comments or brackets do not end is refused. Octets beyond ASCII count as letters
(RFC 6532).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

_TOKEN = re.compile(
    rb"(?P<space>[ \t\r\n]++)"
    rb'|(?P<word>"(?:[^"\\]|\\.)*+"|[^\s()<>\[\]:;@\\,."]++)'
    rb"|(?P<literal>\[(?:[^\[\]\\]|\\.)*+\])"
    rb"|(?P<special>[<>:;@,.])",
    re.DOTALL,
)
_IN_COMMENT = re.compile(rb"(?:[^()\\]|\\.)*+[()]", re.DOTALL)


class UnreadableError(ValueError):
    """A quoted string, a comment or a bracket of the value does not end."""


@dataclass(frozen=True, slots=True)
class AddressSpan:
    """An address in a value: its octets from `start` to `end`.

    `local` and `domain` have neither spaces nor comments in them. The comments between them
    are in `comments`.
    """

    start: int
    end: int
    local: bytes
    domain: bytes
    comments: tuple[bytes, ...]


@dataclass(slots=True)
class _Token:
    kind: str
    octets: bytes
    start: int
    end: int


def address_spans(value: bytes) -> tuple[list[AddressSpan], bool]:
    """Return the addresses of a value, and whether all that looks like one was understood.

    Raises UnreadableError.
    """
    spans: list[AddressSpan] = []
    whole = True
    element: list[_Token] = []
    inside = False  # whether the token is within angle brackets

    def end() -> None:
        nonlocal whole
        span, good = _address_span(element)
        if span:
            spans.append(span)
        whole = whole and good
        element.clear()

    for token in _tokens(value):
        mark = token.octets if token.kind == "special" else b""
        if inside and mark == b">":
            end()
            inside = False
        elif inside and mark == b":" and _is_route(element):
            element.clear()
        elif mark == b"<" and not inside:
            element.clear()  # the display name
            inside = True
        elif mark in (b"<", b">"):
            raise UnreadableError(f"{mark.decode()} at octet {token.start}")
        elif not inside and mark in (b",", b";"):
            end()
        elif not inside and mark == b":":
            element.clear()  # the name of a group
        else:
            element.append(token)
    if inside:
        raise UnreadableError("< without >")
    end()
    return spans, whole


def replaced(value: bytes, change: Callable[[AddressSpan], bytes | None]) -> tuple[bytes, bool]:
    """Return the value with other addresses, and whether all of it was understood.

    `change` returns the octets of the new address, or None for one that stays. Comments inside of a
    replaced address go behind it. Raises UnreadableError.
    """
    spans, whole = address_spans(value)
    parts: list[bytes] = []
    done = 0
    for span in spans:
        new = change(span)
        if new is not None:
            parts += [value[done : span.start], b" ".join((new, *span.comments))]
            done = span.end
    return (b"".join([*parts, value[done:]]) if parts else value), whole


def _tokens(value: bytes) -> Iterator[_Token]:
    position, end = 0, len(value)
    while position < end:
        match = _TOKEN.match(value, position)
        if match:
            kind, stop = str(match.lastgroup), match.end()
        elif value[position] == ord("("):
            kind, stop = "comment", _comment_end(value, position)
        else:
            raise UnreadableError(f"octet {position} begins nothing that ends")
        yield _Token(kind, value[position:stop], position, stop)
        position = stop


def _comment_end(value: bytes, start: int) -> int:
    """Return where a comment ends; comments nest."""
    depth, position = 1, start + 1
    while depth:
        match = _IN_COMMENT.match(value, position)
        if not match:
            raise UnreadableError(f"the comment at octet {start} does not end")
        position = match.end()
        depth += 1 if value[position - 1] == ord("(") else -1
    return position


def _is_route(element: list[_Token]) -> bool:
    """Return whether an element is an obsolete source route, as in <@a,@b:c@d>."""
    first = next((token for token in element if token.kind not in ("space", "comment")), None)
    return first is not None and first.octets == b"@"


def _address_span(element: list[_Token]) -> tuple[AddressSpan | None, bool]:
    """Return the address that an element is; False if it has an @ and is none."""
    solid = [i for i, token in enumerate(element) if token.kind not in ("space", "comment")]
    marks = [i for i in solid if element[i].octets == b"@"]
    if not marks:
        return None, True
    tokens = [element[i] for i in solid]
    at = tokens.index(element[marks[0]])
    local, domain = tokens[:at], tokens[at + 1 :]
    if not (len(marks) == 1 and _is_local(local) and _is_domain(domain)):
        return None, False
    inner = element[solid[0] : solid[-1] + 1]
    return AddressSpan(
        tokens[0].start,
        tokens[-1].end,
        b"".join(token.octets for token in local),
        b"".join(token.octets for token in domain),
        tuple(token.octets for token in inner if token.kind == "comment"),
    ), True


def _is_local(tokens: list[_Token]) -> bool:
    """Return whether words with dots between them are a local part; more dots are common too."""
    words = [token.kind == "word" for token in tokens]
    dots = all(token.kind == "word" or token.octets == b"." for token in tokens)
    return dots and any(words) and not any(a and b for a, b in pairwise(words))


def _is_domain(tokens: list[_Token]) -> bool:
    if len(tokens) == 1 and tokens[0].kind == "literal":
        return True
    quoted = any(token.octets.startswith(b'"') for token in tokens)
    return _is_local(tokens) and not quoted
