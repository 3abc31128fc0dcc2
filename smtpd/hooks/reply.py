"""Checks the answers of hooks: replies of SMTP, as RFC 5321 section 4.2 has them (pure)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

_LINE = re.compile(r"[245][0-5][0-9][ -][\t -~]*[!-~][\t -~]*")
_OCTETS = 510  # of a line without CRLF (RFC 5321, section 4.5.3.1.5)
_LINES = 100
_SHOWN = 60  # characters of a wrong answer in the log


class BadAnswer(Exception):
    """A hook answered with something that is no reply."""


def check_reply(answer: Any, pushed: Sequence[Any] = ()) -> str:
    """Return the reply of a hook: what it pushed, then what it returned, lines joined by CRLF.

    A reply has a code of 2xx, 4xx or 5xx and a text of printable ASCII. A line has at most 512
    octets. Raises BadAnswer.
    """
    if not pushed and type(answer) is str:
        return _single(answer)
    return _join([*pushed, answer])


@lru_cache(maxsize=1024)
def _single(answer: str) -> str:
    """Return a reply of one line; hooks mostly answer with the same few."""
    return _join([answer])


def check_replies(answer: Any, pushed: Sequence[Any] = ()) -> str:
    """Return the reply of `handle_EHLO`, which answers with a list of lines. Raises BadAnswer."""
    if not isinstance(answer, list | tuple) or not answer:
        raise BadAnswer(f"returned {_show(answer)}, not a list of replies")
    return _join([*pushed, *answer])


def _join(lines: list[Any]) -> str:
    """Join lines of one reply; only the last one has a space after the code."""
    if len(lines) > _LINES:
        raise BadAnswer(f"answered with {len(lines)} lines, more than {_LINES}")
    texts = [_line(line) for line in lines]
    codes = {text[:3] for text in texts}
    if len(codes) > 1:
        raise BadAnswer(f"answered with several codes: {', '.join(sorted(codes))}")
    if len(texts) == 1:
        return f"{texts[0][:3]} {texts[0][4:]}"
    start = [f"{text[:3]}-{text[4:]}" for text in texts[:-1]]
    return "\r\n".join([*start, f"{texts[-1][:3]} {texts[-1][4:]}"])


def _line(line: Any) -> str:
    if not isinstance(line, str | bytes):
        raise BadAnswer(f"returned {_show(line)}, not a reply such as '250 OK'")
    if len(line) > _OCTETS:  # first: the pattern takes the square of the length
        raise BadAnswer(f"returned a reply of {len(line)} octets, more than {_OCTETS}")
    text = line.decode("latin-1") if isinstance(line, bytes) else line
    if not _LINE.fullmatch(text):
        raise BadAnswer(f"returned {_show(line)}: a reply is a code, a space and printable ASCII")
    return text


def _show(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:  # it is the hook's own class
        text = type(value).__name__
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
