"""Mail as JSON of submit_mails() in the database; the types of its values are checked here."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final, NamedTuple

from pgmta.compose.submitted_mail import Attachment, Mail, RawMail, SubmittedMail, TemplateMail
from pgmta.errors import SubmissionError
from pgmta.mail.text import UNSTORABLE
from pgmta.tracing import TRACE_KEY

_LISTS: Final = (list, tuple)


class MailJson(NamedTuple):
    """A mail as JSON. Octets are beside it: each is followed by its `rest` of the text."""

    text: str
    octets: Sequence[bytes] = ()
    rest: Sequence[str] = ()

    @property
    def size(self) -> int:
        """Octets of the mail, about."""
        return len(self.text) + (sum(map(len, self.octets)) if self.octets else 0)


def mail_json(mail: SubmittedMail, traceparent: str = "", *, ascii_only: bool = False) -> MailJson:
    """Return the mail as JSON, on request in ASCII.

    A `traceparent` is its trace context, unless its metadata has one. Raises TypeError, ValueError
    or SubmissionError, each with the name of the bad argument.
    """
    make = _OBJECTS.get(type(mail)) or _kind_of(mail)
    found = make(mail)
    if traceparent:
        found["metadata"] = {TRACE_KEY: traceparent, **found.get("metadata", {})}
    encode = _ASCII if ascii_only else _UTF8
    try:
        text = encode(found)
    except (TypeError, ValueError, RecursionError):
        _blame(found)
        raise
    if not _storable(text):
        for name, value in _by_name(found):
            check_texts(name, value)
    if isinstance(mail, RawMail):
        return MailJson(f'{text[:-1]},"content":', (_octets("content", mail.content),), ("}",))
    if isinstance(mail, Mail | TemplateMail) and mail.attachments:
        return _with_files(text, mail.attachments, encode)
    return MailJson(text)


def as_array(mails: Iterable[MailJson]) -> tuple[str, list[bytes]]:
    """Return mails as a JSON array, and the octets whose places it names."""
    contents: list[bytes] = []
    texts = []
    for mail in mails:
        text, several, rests = mail
        if several:
            for octets, rest in zip(several, rests, strict=True):
                text = f"{text}{len(contents)}{rest}"
                contents.append(octets)
        texts.append(text)
    return f"[{','.join(texts)}]", contents


def as_text(mails: Iterable[MailJson]) -> str:
    """Return mails as a JSON array with their octets in base64."""
    texts = []
    for mail in mails:
        segments = [mail.text]
        for octets, rest in zip(mail.octets, mail.rest, strict=True):
            segments += '"', b64encode(octets).decode(), '"', rest
        texts.append("".join(segments))
    return f"[{','.join(texts)}]"


def _parts(mail: Mail) -> dict[str, Any]:
    found = _options(mail)
    for name, text in (
        ("sender", mail.sender), ("subject", mail.subject), ("body", mail.body),
        ("html", mail.html), ("reply_to", mail.reply_to), ("from", mail.from_),
    ):  # fmt: skip
        if isinstance(text, str):
            found[name] = text
        elif text is not None or name in ("sender", "subject"):
            raise _no_text(_in_python(name), text)
    for name, mailboxes in (("to", mail.to), ("cc", mail.cc), ("bcc", mail.bcc)):
        if mailboxes:
            found[name] = _list(name, mailboxes)
    if mail.headers:
        found["headers"] = _object("headers", mail.headers)
    return found


def _template(mail: TemplateMail) -> dict[str, Any]:
    found = _options(mail)
    for name in ("template", "recipient"):
        value = getattr(mail, name)
        if not isinstance(value, str):
            raise _no_text(name, value)
        found[name] = value
    if mail.params:
        found["params"] = _object("params", mail.params)
    if mail.version is not None:
        found["version"] = _whole("version", mail.version)
    return found


def _raw(mail: RawMail) -> dict[str, Any]:
    found = _options(mail)
    if not isinstance(mail.sender, str):
        raise _no_text("sender", mail.sender)
    found["sender"] = mail.sender
    found["recipients"] = _list("recipients", mail.recipients)
    return found


_OBJECTS: Final[dict[type, Callable[[Any], dict[str, Any]]]] = {
    Mail: _parts, TemplateMail: _template, RawMail: _raw
}  # fmt: skip


def _kind_of(mail: object) -> Callable[[Any], dict[str, Any]]:
    for kind, make in _OBJECTS.items():
        if isinstance(mail, kind):
            return make
    raise TypeError(
        f"give a pgmta.Mail, pgmta.TemplateMail or pgmta.RawMail, and not {_kind(mail)}"
    )


def _options(mail: SubmittedMail) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if mail.send_at is not None:
        found["send_at"] = _time("send_at", mail.send_at)
    if mail.deadline is not None:
        found["deadline"] = _time("deadline", mail.deadline)
    if mail.priority != 5:
        found["priority"] = _whole("priority", mail.priority)
    if mail.metadata:
        found["metadata"] = _object("metadata", mail.metadata)
    if mail.key is not None:
        found["key"] = mail.key
    if mail.tenant != "":
        found["tenant"] = mail.tenant
    if mail.on_failed != "remove":
        found["on_failed"] = mail.on_failed
    if mail.unsubscribe is not None:
        found["unsubscribe"] = mail.unsubscribe
    for name in ("key", "tenant", "on_failed", "unsubscribe"):
        if name in found and not isinstance(found[name], str):
            raise _no_text(name, found[name])
    if mail.once is not False:
        if mail.once is not True:
            raise TypeError(f"once: it has to be True or False, and not {_kind(mail.once)}")
        found["once"] = True
    return found


def _time(name: str, value: object) -> str:
    if not isinstance(value, datetime):
        raise TypeError(f"{name}: it has to be a datetime, and not {_kind(value)}")
    if value.utcoffset() is None:
        raise ValueError(f"{name}: it has no time zone, such as datetime.now(UTC) has it")
    try:
        return value.astimezone(UTC).isoformat()
    except OverflowError:
        raise ValueError(f"{name}: it is too far away") from None


def _whole(name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name}: it has to be a whole number, and not {_kind(value)}")
    return value


def _list(name: str, value: Sequence[str]) -> Sequence[str]:
    if not isinstance(value, _LISTS):
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
            raise TypeError(f"{name}: give a list of mailboxes, and not {_kind(value)}")
        value = list(value)
    for each in value:
        if not isinstance(each, str):
            raise TypeError(f"{name}: a mailbox has to be a text, and not {_kind(each)}")
    return value


def _object(name: str, value: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{name}: it has to be a dict, and not {_kind(value)}")
    return dict(value)


def _octets(name: str, value: object) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"{name}: the content has to be bytes, and not {_kind(value)}")
    return bytes(value)


def _with_files(
    text: str, files: Sequence[Attachment], encode: Callable[[object], str]
) -> MailJson:
    octets, segments = [], [f'{text[:-1]},"attachments":[']
    for each in files:
        if not isinstance(each, Attachment):
            raise TypeError(
                f"attachments: give a list of pgmta.Attachment, and not one with {_kind(each)}"
            )
        octets.append(_octets("attachments", each.content))
        about = {"name": each.name, "type": each.type, "content_id": each.content_id}
        for name, value in about.items():
            if not isinstance(value, str | None):
                raise _no_text(f"attachments: {name}", value)
        check_texts("attachments", about)
        segments[-1] += f'{encode(about)[:-1]},"content":'
        segments.append("},")
    return MailJson(segments[0], octets, [*segments[1:-1], "}]}"])


def _kind(value: object) -> str:
    return type(value).__name__


def _no_text(name: str, value: object) -> TypeError:
    return TypeError(f"{name}: it has to be a text, and not {_kind(value)}")


def _number(value: object) -> str:
    if isinstance(value, Decimal):
        return str(value)
    raise TypeError(f"{_kind(value)} is no value of JSON")


def _encoder(*, ascii_only: bool) -> Callable[[object], str]:
    return json.JSONEncoder(
        ensure_ascii=ascii_only, allow_nan=False, check_circular=False,
        separators=(",", ":"), default=_number,
    ).encode  # fmt: skip


_UTF8, _ASCII = _encoder(ascii_only=False), _encoder(ascii_only=True)


def _blame(found: dict[str, Any]) -> None:
    """Raise the error of the first value that is none of JSON, with its name."""
    for name, value in _by_name(found):
        try:
            _UTF8(value)
        except TypeError as error:
            raise TypeError(f"{name}: {error}") from None
        except ValueError as error:  # a number that is infinite or has over 4,300 digits
            raise SubmissionError(name, str(error)) from None
        except RecursionError:
            raise SubmissionError(name, "it is nested too deeply") from None


def _storable(text: str) -> bool:
    """Return False if JSON may have NUL or half of a character, which PostgreSQL can't have."""
    if "\\u0000" in text:
        return False
    if text.isascii():
        return "\\ud" not in text
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _by_name(found: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield each value with the name of its argument in Python."""
    for key, value in found.items():
        yield _in_python(key), value


def _in_python(key: str) -> str:
    return "from_" if key == "from" else key


def check_texts(argument: str, value: object) -> None:
    """Refuse texts that PostgreSQL can't have, whose error would show them.

    Raises SubmissionError.
    """
    if isinstance(value, str):
        if UNSTORABLE.search(value):
            raise SubmissionError(argument, "it has NUL or half of a character")
    elif isinstance(value, Mapping):
        for each in value.items():
            check_texts(argument, each)
    elif isinstance(value, list | tuple):
        for each in value:
            check_texts(argument, each)
