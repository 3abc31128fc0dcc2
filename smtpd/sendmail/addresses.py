"""Lists of addresses, as header fields and command lines have them (RFC 5322, section 3.4)."""

from __future__ import annotations

from smtpd.sendmail.exits import DATA_ERROR, Exit

_BLANKS = " \t\r\n"  # an argument may be folded as a header field is
_ENDS = {'"': '"', "[": "]", "(": ")", "<": ">"}


def listed(text: str, place: str) -> list[str]:
    """Return the addresses of a list, without names, groups, comments and angle brackets.

    Blanks and line ends part addresses as commas do, unless angle brackets follow: then they are a
    name. So `Ann ann@x` has two, as for Postfix and Sendmail. `place` is for the error. Raises Exit
    with code 65 for a text that is no list.
    """
    try:
        return _List(text).addresses
    except ValueError as error:
        shown = "".join(char if char.isprintable() else "?" for char in text)
        raise Exit(DATA_ERROR, f"can't read the addresses in {place}: {error}: {shown}") from None


class _List:
    """Reads a list. Raises ValueError."""

    def __init__(self, text: str) -> None:
        self.addresses: list[str] = []
        self._tokens: list[str] = []  # of the mailbox so far
        self._angle: str | None = None
        self._apart = True  # whether a blank or a comment stands before the next character
        group = False
        at = 0
        while at < len(text):
            char = text[at]
            end = _end(text, at) if char in _ENDS else at + 1
            if char == "<":
                if self._angle is not None:
                    raise ValueError("two addresses without a comma")
                self._angle = text[at + 1 : end - 1]
            elif char == "(" or char in _BLANKS:
                self._apart = True
            elif char == ":" and self._angle is None:
                if group:
                    raise ValueError("a group in a group")
                group, self._tokens, self._apart = True, [], True
            elif char in ",;":  # some programs part addresses by semicolons
                self._finish()
                group = group and char != ";"
            else:
                self._add(text[at:end])
            at = end
        if group:
            raise ValueError("a group without ; at its end")
        self._finish()

    def _add(self, part: str) -> None:
        if self._angle is not None:
            raise ValueError("text behind >")
        # blanks may stand around @ and dots
        joined = self._tokens and (self._tokens[-1][-1] == "@" or part == "@" or not self._apart)
        if joined:
            self._tokens[-1] += part
        else:
            self._tokens.append(part)
        self._apart = False

    def _finish(self) -> None:
        if self._angle is None:
            self.addresses += self._tokens
        else:
            route = self._angle.lstrip(_BLANKS)
            if route.startswith("@"):  # a source route is obsolete (RFC 5322, section 4.4)
                route = route.partition(":")[2]
            inner = _List(route).addresses if route.strip(_BLANKS) else [""]
            if len(inner) != 1:
                raise ValueError("angle brackets with more than one address")
            self.addresses += inner
        self._tokens, self._angle, self._apart = [], None, True


def _end(text: str, at: int) -> int:
    """Return the place behind the end of a quoted string, literal, comment or angle brackets."""
    first, last = text[at], _ENDS[text[at]]
    place, depth = at + 1, 1
    while place < len(text):
        char = text[place]
        if char == "\\":
            place += 1
        elif char == last:
            depth -= 1
            if not depth:
                return place + 1
        elif char == first == "(":
            depth += 1
        elif first == "<" and char in '("':
            place = _end(text, place) - 1
        place += 1
    raise ValueError(f"{first} without {last}")
