"""What the answers of a provider mean for the mail (pure)."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from pgmta.errors import Stage
from pgmta.http.answer_reader import HttpAnswer
from pgmta.mail.text import printable
from pgmta.model import Reply
from pgmta.states import Event
from pgmta_features.providers.answer_path import find, parse_path, shown
from pgmta_features.providers.http_parameters import HttpSettings
from queued.delivery.transport.result import Result
from queued.delivery.transport.secret_parts import LEFT_OUT, SecretParts

_MAX_RETRY_AFTER_S = 7 * 86400.0
_NO_SECRETS = SecretParts(())
_MAX_TEXT_CHARACTERS = 300  # of an answer
_CODES_BY_EVENT = {Event.DELIVERED: 250, Event.DEFER: 451, Event.FAIL: 554}
_ENHANCED = {Event.DEFER: "4.3.0", Event.FAIL: "5.3.0"}


def result_of(
    settings: HttpSettings,
    answer: HttpAnswer,
    host: str,
    now: datetime,
    secrets: SecretParts = _NO_SECRETS,
) -> Result:
    """Return the result of an answer to a whole request.

    A status from 500 on, one in `defer`, and an error in `error_later` say nothing about the mail:
    it is tried again. So does a redirect, which is not followed. Other statuses refuse the mail for
    good. Another status from 200 to 299 leaves the outcome unknown: the provider may have taken the
    mail. So does an answer that needs a value at a path, and has no JSON document. A text with a
    part of a secret is left out of the reply, because a provider may repeat what it got.
    """
    document = answer.document() if settings.success.path or _paths(settings) else None
    event = _event(settings, answer, document)
    text = _words(settings, answer, document, event, secrets)
    result = Result(event, Reply(_CODES_BY_EVENT.get(event, 0), text), host, Stage.END_OF_DATA)
    if event is Event.DEFER and (wait := retry_after(answer.fields.get("retry-after"), now)):
        result.wait = wait
    return result


def _paths(settings: HttpSettings) -> list[str]:
    given = (settings.id, settings.error, settings.error_sub_type, *settings.error_text)
    return [path for path in given if path]


def _event(settings: HttpSettings, answer: HttpAnswer, document: Any) -> Event:
    status, success = answer.status, settings.success
    good = status in success.status if success.status else 200 <= status <= 299
    if not good:
        if 200 <= status <= 299 and status not in settings.defer:
            return Event.UNKNOWN
        passes = status in settings.defer or not 400 <= status <= 499 or _later(settings, document)
        return Event.DEFER if passes else Event.FAIL
    if not success.path:
        return Event.DELIVERED
    if document is None:
        return Event.UNKNOWN
    value = find(document, parse_path(success.path))
    if any(_same(value, each) for each in success.later):
        return Event.DEFER
    if success.values:
        return Event.DELIVERED if any(_same(value, v) for v in success.values) else Event.FAIL
    return Event.FAIL if value is None else Event.DELIVERED


def _later(settings: HttpSettings, document: Any) -> bool:
    if not (settings.error and settings.error_later):
        return False
    code = find(document, parse_path(settings.error))
    return any(_same(code, each) for each in settings.error_later)


def _same(value: Any, wanted: str | bool | int) -> bool:
    return type(value) is type(wanted) and value == wanted


def _words(
    settings: HttpSettings, answer: HttpAnswer, document: Any, event: Event, secrets: SecretParts
) -> str:
    """Return the text of the reply: status, id or error, and of an error the start of the body."""

    values: list[str] = []

    def clean(text: str) -> str:
        value = printable(text)[:_MAX_TEXT_CHARACTERS]
        if secrets.are_in(value):
            return LEFT_OUT
        values.append(value)
        return value

    def at(name: str, path: str | None) -> list[str]:
        value = shown(find(document, parse_path(path))) if path else ""
        return [f"{name}={clean(value)}"] if value else []

    status = f"HTTP {answer.status}"
    said = [clean(answer.reason)] if answer.reason else []
    if event is Event.DELIVERED:
        named = answer.fields.get(settings.id_header.lower(), "") if settings.id_header else ""
        said += [f"id={clean(named)}"] if named else at("id", settings.id)
    else:
        status = f"{_ENHANCED.get(event, '4.3.0')} {status}"
        found = [*at("error", settings.error), *at("error_sub_type", settings.error_sub_type)]
        found += next(filter(None, (at("error_text", path) for path in settings.error_text)), [])
        if not found and answer.body and "content-encoding" not in answer.fields:
            found = [clean(" ".join(answer.body.decode("utf-8", "replace").split()))]
        said += found
    # a secret may be spread over several texts
    spread = secrets.are_in("".join(values))
    return f"{status} {LEFT_OUT if spread else ' '.join(said)}".rstrip()


def retry_after(value: str | None, now: datetime) -> float:
    """Return the seconds of a field Retry-After, at most a week (RFC 9110, section 10.2.3).

    It is 0.0 without a value that can be read.
    """
    if not value:
        return 0.0
    text = value.strip()
    if text.isascii() and text.isdigit() and len(text) <= 9:
        return min(float(text), _MAX_RETRY_AFTER_S)
    try:
        at = parsedate_to_datetime(text)
    # for example an offset beyond that of a timedelta
    except (ValueError, TypeError, OverflowError):
        return 0.0
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return min(max((at - now).total_seconds(), 0.0), _MAX_RETRY_AFTER_S)
