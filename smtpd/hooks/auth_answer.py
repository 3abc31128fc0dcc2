"""Reads the answers of hooks that log users in, in the forms of aiosmtpd (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aiosmtpd.smtp import MISSING, AuthResult, LoginPassword

from pgmta.accounts.login import Login
from smtpd.hooks.reply import BadAnswer
from smtpd.hooks.reply import check_reply as check_any_reply

SUCCESS = "235 2.7.0 Authentication successful"
INVALID = "535 5.7.8 Authentication credentials invalid"
UNAVAILABLE = "454 4.7.0 Temporary authentication failure"

_USER = 200  # characters of a user's name


def check_reply(answer: Any, pushed: Sequence[Any] = ()) -> str:
    """Return a reply of a hook. Raises BadAnswer, whose text has nothing of the answer."""
    try:
        return check_any_reply(answer, pushed)
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
    message = "" if answer.message is None else check_reply(answer.message)
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
            return user, check_reply(reply or SUCCESS, pushed)
        if pushed and (answer.handled or not reply):
            return None, check_reply(pushed[-1], pushed[:-1])
        return None, check_reply(reply or INVALID, pushed)
    if answer is None and pushed:
        return None, check_reply(pushed[-1], pushed[:-1])
    if answer is MISSING or answer is False:
        return None, check_reply(pushed[-1], pushed[:-1]) if pushed else INVALID
    raise BadAnswer(f"returned {type(answer).__name__}, not AuthResult")


def login(data: Any, mechanism: str, name: str, reply: str = "") -> Login:
    """Return the user of a success. Raises BadAnswer if the name can't be one.

    `data` is the hook's `auth_data`: a Login, a LoginPassword, an object with `login`, or a name.
    """
    if isinstance(data, Login):
        return data
    found = data if isinstance(data, str | bytes) else getattr(data, "login", None)
    if isinstance(data, LoginPassword):
        found = data.login
    if isinstance(found, bytes):
        found = found.decode("utf-8", "replace")
    user = found if isinstance(found, str) and found else name
    if len(user) > _USER or not (user.isprintable() or not user):
        raise BadAnswer("the user's name is too long, or can't be printed")
    return Login(user, mechanism, reply=reply)
