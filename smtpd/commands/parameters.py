"""The parameters of MAIL and RCPT (RFC 5321, section 4.1.2; pure)."""

from __future__ import annotations

import re

from pgmta.accounts.login import Login
from smtpd.config import SmtpdConfig
from smtpd.policy import plain
from smtpd.protocol import replies
from smtpd.protocol.transaction import Transaction

_USUAL_PRIORITY = 5  # of a row
_MAX_MT_PRIORITY = 9  # that a client may ask for; the lowest is -9
_MAX_SIZE_DIGITS = 20  # RFC 1870, section 3
# The parameters of delivery status notifications (RFC 3461, sections 4 and 5).
_XTEXT = r"(?:[!-*,-<>-~]|\+(?:09|[2-689A-F][0-9A-F]|7[0-9A-E]))"  # without control characters
_ENVID = re.compile(rf"{_XTEXT}{{1,100}}")
_ORCPT = re.compile(rf"[A-Za-z0-9-]{{1,64}};{_XTEXT}{{1,500}}")
_PLAIN_XTEXT = re.compile(r"[!-*,-<>-~]")
_PLAIN_UTF8 = re.compile(r"[!-*,-<>-\[\]-~]")  # RFC 6533, section 3: no backslash
_NOTIFY = re.compile(r"NEVER|(?:SUCCESS|FAILURE|DELAY)(?:,(?:SUCCESS|FAILURE|DELAY)){0,2}")
_SUBMITTER = re.compile(rf"<>|{_XTEXT}{{1,500}}")  # RFC 4954, section 5
Dsn = tuple[str | None, str | None]
"""NOTIFY and ORCPT of a recipient."""


def row_priority(wanted: int) -> int:
    """Return the priority of a row, 0 (first) to 9, for one from 9 (first) to -9."""
    levels = _USUAL_PRIORITY if wanted > 0 else _MAX_MT_PRIORITY - _USUAL_PRIORITY
    return _USUAL_PRIORITY - round(wanted * levels / _MAX_MT_PRIORITY)


def mt_priority(row: int) -> int:
    """Return the priority in the terms of a client for that of a row."""
    levels = _USUAL_PRIORITY if row < _USUAL_PRIORITY else _MAX_MT_PRIORITY - _USUAL_PRIORITY
    return round((_USUAL_PRIORITY - row) * _MAX_MT_PRIORITY / levels)


def _number(value: str) -> int | None:
    """Return the value of MT-PRIORITY, or None if it is no priority."""
    digits = value.removeprefix("-")
    if len(digits) == 1 and digits.isascii() and digits.isdigit() and value != "-0":
        return int(value)
    return None


class Parameters:
    """Takes the parameters that a listener has announced; each method returns a refusal or ''."""

    def __init__(
        self, config: SmtpdConfig, *, role: str = "relay", tls: bool = False, auth: bool = False
    ) -> None:
        self._size = config.limits.message_size
        self._dsn = config.dsn
        self._priorities = role == "submission"
        self._tls = tls
        self._auth = auth

    def mail(
        self, rest: str, transaction: Transaction, *, secure: bool, login: Login | None
    ) -> str:
        """Take the parameters of MAIL; `secure` says whether the session has TLS."""
        envelope, seen = transaction.envelope, set[str]()
        for given in separated(rest):
            parameter = given.upper()
            keyword, _, value = parameter.partition("=")
            if keyword in seen:
                return replies.REPEATED_PARAMETER.format(plain(keyword[:40]))
            seen.add(keyword)
            if parameter == "SMTPUTF8":
                envelope.smtp_utf8 = True
            elif keyword == "BODY":
                if value not in ("7BIT", "8BITMIME"):
                    return replies.BAD_BODY
            elif keyword == "SIZE":
                if not (value.isascii() and value.isdigit() and len(value) <= _MAX_SIZE_DIGITS):
                    return replies.BAD_SIZE
                if int(value) > self._size:
                    return replies.TOO_LARGE.format(self._size)
            else:
                value = given.partition("=")[2]
                refusal = self._rare(keyword, value, transaction, secure=secure, login=login)
                if refusal:
                    return refusal.format(plain(keyword[:40]))
            envelope.mail_options.append(parameter)
        return ""

    def _rare(
        self,
        keyword: str,
        value: str,
        transaction: Transaction,
        *,
        secure: bool,
        login: Login | None,
    ) -> str:
        if keyword == "REQUIRETLS" and not value and (secure or self._tls):
            if not secure:
                return replies.NEEDS_STARTTLS
            transaction.rare_options().requiretls = True
        elif keyword == "RET" and self._dsn:
            if value.upper() not in ("FULL", "HDRS"):
                return replies.BAD_RET
            transaction.rare_options().ret = value.upper()
        elif keyword == "ENVID" and self._dsn:
            if not _ENVID.fullmatch(value):
                return replies.BAD_ENVID
            transaction.rare_options().envid = value
        elif keyword == "MT-PRIORITY" and self._priorities:
            return _prioritise(value, transaction, login)
        elif keyword == "AUTH" and self._auth:
            return "" if _SUBMITTER.fullmatch(value) else replies.BAD_SUBMITTER
        else:
            return replies.UNKNOWN_PARAMETER
        return ""

    def rcpt(self, rest: str) -> tuple[str, Dsn]:
        """Return the refusal of the parameters of RCPT, or '' and their values."""
        notify: str | None = None
        orcpt: str | None = None
        for given in separated(rest):
            keyword, _, value = given.partition("=")
            keyword = keyword.upper()
            if not self._dsn or keyword not in ("NOTIFY", "ORCPT"):
                return replies.UNKNOWN_PARAMETER.format(plain(keyword[:40])), (None, None)
            if (notify if keyword == "NOTIFY" else orcpt) is not None:
                return replies.REPEATED_PARAMETER.format(keyword), (None, None)
            if keyword == "NOTIFY":
                notify = value.upper()
                words = notify.split(",")
                if not _NOTIFY.fullmatch(notify) or len(set(words)) < len(words):
                    return replies.BAD_NOTIFY, (None, None)
            else:
                orcpt = value if value.isascii() else _xtext(value)
                if not _ORCPT.fullmatch(orcpt):
                    return replies.BAD_ORCPT, (None, None)
        return "", (notify, orcpt)


def separated(rest: str) -> list[str]:
    """Return the parameters behind a path. Only spaces are between them."""
    return [word for word in rest.split(" ") if word]


def orcpt_of(mailbox: str) -> str | None:
    """Return the ORCPT of a recipient for which the client gave none; None if it is too long.

    RFC 3461, section 5.2.1, and RFC 6533, section 3.
    """
    if mailbox.isascii():
        form, ordinary, coded = "rfc822;", _PLAIN_XTEXT, "+{:02X}"
    else:
        form, ordinary, coded = "utf-8;", _PLAIN_UTF8, "\\x{{{:X}}}"
    orcpt = form + "".join(
        char if ordinary.match(char) else coded.format(ord(char)) for char in mailbox
    )
    return orcpt if _ORCPT.fullmatch(orcpt) else None


def _xtext(orcpt: str) -> str:
    """Return an ORCPT of type utf-8 in ASCII, for next hops and DSNs of any kind (RFC 6533, 3).

    Any other one stays.
    """
    if not orcpt.lower().startswith("utf-8;") or any("\ud800" <= c <= "\udfff" for c in orcpt):
        return orcpt
    return "".join(char if char.isascii() else f"\\x{{{ord(char):X}}}" for char in orcpt)


def _prioritise(value: str, transaction: Transaction, login: Login | None) -> str:
    """Take the priority, as far as the user may ask for it."""
    wanted = _number(value)
    if wanted is None:
        return replies.BAD_PRIORITY
    row = row_priority(wanted)
    first, last = login.priorities if login else (5, 5)
    given = min(max(row, first), last)
    transaction.set_priority(given, mt_priority(given) if given != row else None)
    return ""
