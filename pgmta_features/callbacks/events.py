"""Events of a provider, as its callback describes them (pure)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pgmta.mail.text import UNSTORABLE, printable
from pgmta_features.callbacks.notes import ProviderEvent
from pgmta_features.callbacks.proof import BodyMalformed, CallbackRequest
from pgmta_features.callbacks.settings import CallbackEvents
from pgmta_features.providers.answer_path import (
    find,
    find_elements,
    parse_list_path,
    parse_path,
    shown,
)

_KEY = re.compile(r"(?<![\w-])pgmta-([1-9]\d{0,18})-([1-9]\d{0,18})(?![\w-])", re.ASCII)
_MAX_BIGINT = (1 << 63) - 1
_MAX_TEXT_CHARACTERS = 900
_MAX_CODE_CHARACTERS = 100
_MIN_MILLISECONDS = 1e11  # a time of at least this number is in milliseconds
_MAX_KIND_CHARACTERS = 200

type _Steps = tuple[str | int, ...]


@dataclass(slots=True)
class ReadEvents:
    """The events of a request, and how many others were ignored.

    `foreign` have no key of ours, and `strange` no kind that is known, or no form of an event.
    """

    events: list[ProviderEvent]
    foreign: int = 0
    strange: int = 0


class EventReader:
    """Reads the events of one provider."""

    def __init__(self, settings: CallbackEvents) -> None:
        self._settings = settings
        self._kinds: Mapping[str, str] = settings.kinds
        self._each = parse_list_path(settings.each) if settings.each else ((),)
        self._key = [parse_path(path) for path in settings.key]
        self._kind = [parse_path(path) for path in settings.kind]
        self._code = [parse_path(path) for path in settings.code]
        self._sub_type = [parse_path(path) for path in settings.sub_type]
        self._text = [parse_path(path) for path in settings.text]
        self._time = [parse_path(path) for path in settings.time]

    def read(self, request: CallbackRequest, now: datetime, most: int) -> ReadEvents | None:
        """Return the events of a request; None if it has more than `most`, of whatever kind.

        Raises BodyMalformed if there is no list.
        """
        found = ReadEvents([])
        every = self._list(request)
        if len(every) > most:
            return None
        for each in every:
            if not isinstance(each, dict):
                found.strange += 1
                continue
            texts = [request.query.get(self._settings.query, "")] if self._settings.query else (
                _texts(find(each, path)) for path in self._key)  # fmt: skip
            key = next(filter(None, map(_KEY.search, texts)), None)
            kind = self._kind_of(each)
            if not key or max(int(key[1]), int(key[2])) > _MAX_BIGINT:
                found.foreign += 1
            elif not kind:
                found.strange += 1
            else:
                code = _first(each, self._code, _MAX_CODE_CHARACTERS)
                found.events.append(ProviderEvent(
                    int(key[1]), int(key[2]), kind, code,
                    _first(each, self._sub_type, _MAX_CODE_CHARACTERS),
                    _first(each, self._text, _MAX_TEXT_CHARACTERS),
                    _time(each, self._time) or now, self._settings.classes.get(code, ""),
                ))  # fmt: skip
        return found

    def _list(self, request: CallbackRequest) -> list[Any]:
        if self._settings.body == "form":
            return [dict(request.fields)]
        found = find_elements(request.document, self._each)
        if found is None:
            raise BodyMalformed("no list of events")
        return found

    def _kind_of(self, event: dict[str, Any]) -> str:
        """Return our word for the words of the provider: of all, or without the last ones."""
        words = [
            word for path in self._kind if (word := shown(find(event, path))[:_MAX_KIND_CHARACTERS])
        ]
        while words:
            if kind := self._kinds.get(" ".join(words)):
                return kind
            words.pop()
        return ""


def _texts(value: Any) -> str:
    """Return a value as a text; the texts of a list have blanks between."""
    if isinstance(value, list):
        return " ".join(map(shown, value))
    return shown(value)


def _first(event: dict[str, Any], paths: Iterable[_Steps], most: int) -> str:
    for path in paths:
        if text := shown(find(event, path)).strip():
            return UNSTORABLE.sub("", printable(" ".join(text.split())))[:most]
    return ""


def _time(event: dict[str, Any], paths: Iterable[_Steps]) -> datetime | None:
    for path in paths:
        value = find(event, path)
        try:
            if isinstance(value, str) and not value.replace(".", "", 1).isdigit():
                at = datetime.fromisoformat(value)
                return (at if at.tzinfo else at.replace(tzinfo=UTC)).astimezone(UTC)
            if isinstance(value, str | int | float) and not isinstance(value, bool):
                seconds = float(value)
                return datetime.fromtimestamp(
                    seconds / 1000 if seconds >= _MIN_MILLISECONDS else seconds, UTC
                )
        except (ValueError, OverflowError, OSError):
            continue
    return None
