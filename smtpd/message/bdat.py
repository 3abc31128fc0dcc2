"""The content of BDAT: counted octets, in chunks (RFC 3030, section 2; pure)."""

from __future__ import annotations

from pgmta.mail.newlines import Mode, NewlineGuard

_MAX_SIZE_DIGITS = 18  # of a size


def parse(argument: str) -> tuple[int, bool] | None:
    """Return the octets of a chunk, and whether it is the last; None for a wrong argument."""
    size, _, last = argument.partition(" ")
    if not (size.isascii() and size.isdigit() and len(size) <= _MAX_SIZE_DIGITS):
        return None
    last = last.strip().upper()
    return (int(size), bool(last)) if last in ("", "LAST") else None


class Chunks:
    """Takes counted content off the wire, as EndOfData takes content up to its end.

    Dots and line ends in it have no meaning. The guard looks at them nevertheless, because the
    content goes on with DATA.
    """

    __slots__ = ("_last", "_left", "done", "guard", "rest")

    def __init__(self, bare_newlines: Mode) -> None:
        self._left = 0
        self._last = False
        self.guard = NewlineGuard(bare_newlines)
        """Its `problem` names a wrong newline, or is empty."""
        self.done = False
        self.rest: bytes | None = None
        """The octets after the chunk, once it is complete."""

    def begin_chunk(self, size: int, *, last: bool) -> None:
        """Begin a chunk of `size` octets."""
        self._left, self._last, self.rest = size, last, None

    def feed(self, data: bytes) -> bytes:
        """Return the next content; then `rest` says whether the chunk is complete."""
        content = data if len(data) <= self._left else data[: self._left]
        self._left -= len(content)
        self.guard.see(content)
        if not self._left:
            self.rest = data[len(content) :]
            if self._last:
                self.done = True
                self.guard.check_end()
        return content
