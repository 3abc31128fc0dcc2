"""Checks the answers of hooks (pure): replies of SMTP, and the results of AUTH in aiosmtpd's forms.

Replies are as RFC 5321, section 4.2 has them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from aiosmtpd.smtp import MISSING, AuthResult, LoginPassword

from pgmta.accounts.login import Login
from pgmta.password import KEY_PREFIX

SUCCESS = "235 2.7.0 Authentication successful"
INVALID = "535 5.7.8 Authentication credentials invalid"
UNAVAILABLE = "454 4.7.0 Temporary authentication failure"

_LINE = re.compile(r"[245][0-5][0-9][ -][\t -~]*[!-~][\t -~]*")
_MAX_LINE_OCTETS = 510  # without CRLF (RFC 5321, section 4.5.3.1.5)
_MAX_LINES = 100
_SHOWN_CHARACTERS = 60  # of a wrong answer, in the log
_MAX_USER_CHARACTERS = 200


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
    if len(lines) > _MAX_LINES:
        raise BadAnswer(f"answered with {len(lines)} lines, more than {_MAX_LINES}")
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
    if len(line) > _MAX_LINE_OCTETS:  # before the pattern, which takes the square of the length
        raise BadAnswer(f"returned a reply of {len(line)} octets, more than {_MAX_LINE_OCTETS}")
    text = line.decode("latin-1") if isinstance(line, bytes) else line
    if not _LINE.fullmatch(text):
        raise BadAnswer(f"returned {_show(line)}: a reply is a code, a space and printable ASCII")
    return text


def _show(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:  # the object may be of a class of the hook
        text = type(value).__name__
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def check_secret_reply(answer: Any, pushed: Sequence[Any] = ()) -> str:
    """Do as `check_reply`, with a BadAnswer whose text has nothing of the answer."""
    try:
        return check_reply(answer, pushed)
    except BadAnswer:
        raise BadAnswer("answered with something that is no reply") from None


def of_authenticator(answer: Any, mechanism: str, name: str) -> tuple[Login | None, str]:
    """Return the user, or None, and the hook's own reply, if there is one.

    `name` is that which the client gave. Raises BadAnswer if the answer is no AuthResult. Of a
    plain True nothing is known: a coroutine that was not awaited would be true as well.
    """
    if not isinstance(answer, AuthResult):
        if answer is MISSING or answer is False:
            return None, ""
        raise BadAnswer(f"returned {type(answer).__name__}, not AuthResult")
    message = "" if answer.message is None else check_secret_reply(answer.message)
    if answer.success is True:
        if message and message[:3] != "235":
            raise BadAnswer(f"returned {message[:3]} for a success, not 235 (RFC 4954)")
        return login(answer.auth_data, mechanism, name, message), message
    if message and message[0] not in "45":
        raise BadAnswer(f"returned {message[:3]} for a failure, not 4xx or 5xx (RFC 4954)")
    return None, message


def of_mechanism(answer: Any, pushed: Sequence[Any], mechanism: str) -> tuple[Login | None, str]:
    """Return the user, or None, and the reply to AUTH. Raises BadAnswer if there is no reply.

    None says that the hook has pushed its reply. aiosmtpd takes each other value for the user's
    identity. smtpd does not: it might be a reply, such as that of a refusal.
    """
    if isinstance(answer, AuthResult):
        user, reply = of_authenticator(answer, mechanism, "")
        if user:
            return user, check_secret_reply(reply or SUCCESS, pushed)
        if pushed and (answer.handled or not reply):
            return None, check_secret_reply(pushed[-1], pushed[:-1])
        return None, check_secret_reply(reply or INVALID, pushed)
    if answer is None and pushed:
        return None, check_secret_reply(pushed[-1], pushed[:-1])
    if answer is MISSING or answer is False:
        return None, check_secret_reply(pushed[-1], pushed[:-1]) if pushed else INVALID
    raise BadAnswer(f"returned {type(answer).__name__}, not AuthResult")


def login(data: Any, mechanism: str, name: str, reply: str = "") -> Login:
    """Return the user of a success. Raises BadAnswer if the name can't be one.

    `data` is the hook's `auth_data`: a Login, a LoginPassword, an object with `login`, or a name.
    """
    if isinstance(data, Login):
        _check_name(data.user)
        return data
    found = data if isinstance(data, str | bytes) else getattr(data, "login", None)
    if isinstance(data, LoginPassword):
        found = data.login
    if isinstance(found, bytes):
        found = found.decode("utf-8", "replace")
    user = found if isinstance(found, str) and found else name
    _check_name(user)
    return Login(user, mechanism, reply=reply)


def _check_name(user: str) -> None:
    if len(user) > _MAX_USER_CHARACTERS or not (user.isprintable() or not user):
        raise BadAnswer("the user's name is too long, or can't be printed")
    if user.startswith(KEY_PREFIX):
        raise BadAnswer(f"the user's name begins with {KEY_PREFIX}, as those of keys of the API")
