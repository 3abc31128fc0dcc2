"""A time as people write it, in a time zone (pure)."""

from __future__ import annotations

import re
import zoneinfo
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from difflib import get_close_matches

from pgmta.config.types import parse_duration

_EXPECTED = (
    "it is no time such as 2026-12-24 18:00, 24 Dec 2026 6 pm, today 9:00, in 2h or "
    "2026-12-24T18:00:00+01:00"
)
_MONTHS = ("january", "february", "march", "april", "may", "june", "july", "august", "september",
           "october", "november", "december")  # fmt: skip
_LEAST_LETTERS = 3  # of the name of a month
_DAYS = {"yesterday": -1, "today": 0, "tomorrow": 1}
_FIRST_YEAR = 1970
_MOST_OFFSET = timedelta(hours=14)  # east of all time zones

_CLOCK = r"\d\d?:\d\d(?::\d\d)?(?: ?[ap]m)?|\d\d? ?[ap]m"
_WRITTEN = re.compile(
    rf"(?P<date>.+?)(?:(?:,? (?:at )?|T)(?P<clock>{_CLOCK})"
    r"(?: ?(?P<offset>Z|(?:UTC|GMT)?[+-]\d\d?(?::?\d\d)?))?)?"
    r"(?: (?P<zone>[a-z]+(?:[/_+-]\w+)*))?",
    re.ASCII | re.IGNORECASE,
)
_CLOCK_PARTS = re.compile(r"(\d\d?)(?::(\d\d))?(?::(\d\d))? ?([ap])?", re.IGNORECASE)
_OFFSET_PARTS = re.compile(r"[A-Z]*([+-])(\d\d?):?(\d\d)?", re.IGNORECASE)
_ISO = re.compile(r"\d{4}-?(?:\d\d|W).*\dT\d.*", re.ASCII)
_DURATION = re.compile(r"in (.+)", re.IGNORECASE)
_LONG_UNIT = re.compile(r"(?<=\d) ?(sec|min|hour|day|week|second|minute)s?\b", re.IGNORECASE)

_YEAR_FIRST = re.compile(r"(\d{4})([-/])(\d\d?)\2(\d\d?)", re.ASCII)
_DOTTED = re.compile(r"(\d\d?)\. ?(\d\d?)\. ?(\d{4})", re.ASCII)
_DAY_OR_MONTH_FIRST = re.compile(r"(\d\d?)([-/])(\d\d?)\2(\d{4})", re.ASCII)
_DAY_AND_NAME = re.compile(
    r"(\d\d?)(?:\.|st|[nr]d|th)?[ -]?([a-z]+)\.?,?[ -]?(\d{4})", re.IGNORECASE
)
_NAME_AND_DAY = re.compile(r"([a-z]+)\.? (\d\d?)(?:st|[nr]d|th)?,? (\d{4})", re.IGNORECASE)
_NO_YEAR = re.compile(
    r"\d\d?(?:\.|st|[nr]d|th)?[ -]?[a-z]{3,}\.?|[a-z]{3,}\.? \d\d?(?:st|[nr]d|th)?|"
    r"\d\d?\. ?\d\d?\.?|\d\d?[-/]\d\d?", re.IGNORECASE
)  # fmt: skip
_SHORT_YEAR = re.compile(r"\d\d?[-/. ]+(?:\d\d?|[a-z]+)[-/. ]+\d\d", re.ASCII | re.IGNORECASE)


def parse_written_time(
    text: str, now: datetime, zone: tzinfo | None = None, *, whole_days: bool = False
) -> datetime:
    """Return the time that a text says: in its own zone, else in `zone`, None for the machine's.

    A date alone is the beginning of its day if there may be `whole_days`. Raises ValueError for
    what is no time, for a date with two readings, and for a local time that a change of the clocks
    leaves out or repeats.
    """
    text = " ".join(text.split())
    if match := _DURATION.fullmatch(text):
        span = _LONG_UNIT.sub(lambda unit: unit[1][0].lower(), match[1])
        return _at(now + timedelta(seconds=parse_duration(span)), zone)
    if _ISO.fullmatch(text):
        try:
            found = datetime.fromisoformat(text)
        except ValueError:
            pass  # it may have the name of a zone
        else:
            return _checked(found) if found.tzinfo else _localised(found, zone)
    match = _WRITTEN.fullmatch(text)
    if not match or re.fullmatch(_CLOCK, text, re.IGNORECASE):
        raise ValueError(f"the date is missing, as in today {text}" if match else _EXPECTED)
    if match["zone"] and match["offset"]:
        raise ValueError("it has two time zones")
    if match["offset"]:
        zone = _offset(match["offset"])
    day_of = match["date"].lower()
    word = day_of.split(maxsplit=1)[0]
    if word in _DAYS and day_of != word:
        raise ValueError(f"write the time of day as in {word} 9:00 or {word} 9 pm")
    if day_of not in _DAYS and not any(letter.isdigit() for letter in day_of):
        raise ValueError(_EXPECTED)
    if match["zone"] and day_of.rstrip(".stndrh").isdigit() and _months(match["zone"].lower()):
        day_of += f" {match['zone'].lower()}"  # 24 Dec
    elif match["zone"]:
        zone = named_zone(match["zone"])
    today = _at(now, zone).date()
    clock = _clock(match["clock"]) if match["clock"] else None
    day = today + timedelta(_DAYS[day_of]) if day_of in _DAYS else _day(day_of, clock)
    if clock is None and not whole_days:
        raise ValueError(f"the time of day is missing, as in {day} 18:00")
    return _localised(datetime.combine(day, clock or time()), zone)


def shown_time(moment: datetime) -> str:
    """Return a time with its offset and its zone: `2026-12-24 18:00:00 +01:00 (Europe/Berlin)`."""
    zone = getattr(moment.tzinfo, "key", None) or moment.tzname() or ""
    named = f" ({zone})" if zone and not zone.startswith(("UTC+", "UTC-", "+", "-")) else ""
    return f"{moment:%Y-%m-%d %H:%M:%S %:z}{named}"


def _day(text: str, clock: time | None) -> date:
    if match := _YEAR_FIRST.fullmatch(text):
        return _date(match[1], match[3], match[4])
    if match := _DOTTED.fullmatch(text):
        return _date(match[3], match[2], match[1])
    if match := _DAY_AND_NAME.fullmatch(text):
        return _date(match[3], _month(match[2]), match[1])
    if match := _NAME_AND_DAY.fullmatch(text):
        return _date(match[3], _month(match[1]), match[2])
    if match := _DAY_OR_MONTH_FIRST.fullmatch(text):
        first, second, year = int(match[1]), int(match[3]), match[4]
        if first > len(_MONTHS) or first == second:
            return _date(year, second, first)
        if second > len(_MONTHS):
            return _date(year, first, second)
        behind = f" {clock:%H:%M}" if clock else ""
        one, other = _date(year, second, first), _date(year, first, second)
        raise ValueError(f"it may be {one}{behind} or {other}{behind}: write one of these")
    if _NO_YEAR.fullmatch(text):
        raise ValueError("the year is missing, as in 24 Dec 2026")
    if _SHORT_YEAR.fullmatch(text):
        raise ValueError("write the year with four digits")
    raise ValueError(_EXPECTED)


def _date(year: str, month: str | int, day: str | int) -> date:
    try:
        return date(int(year), int(month), int(day))
    except ValueError:
        raise ValueError(f"no calendar has the day {year}-{month:0>2}-{day:0>2}") from None


def _months(name: str) -> list[str]:
    """Return the months that a name may be short for; none if it is too short."""
    start = "sep" if name == "sept" else name
    return [month for month in _MONTHS if month.startswith(start) and len(name) >= _LEAST_LETTERS]


def _month(name: str) -> int:
    found = _months(name)
    if len(found) != 1:
        near = get_close_matches(name, _MONTHS, 1)
        raise ValueError(f"no month is {name}" + (f"; did you mean {near[0]}?" if near else ""))
    return _MONTHS.index(found[0]) + 1


def _clock(text: str) -> time:
    match = _CLOCK_PARTS.match(text)
    assert match  # noqa: S101 - for the type checker
    hour, minute, second = (int(part or 0) for part in match.groups()[:3])
    if half := match[4]:
        if not 1 <= hour <= 12:
            raise ValueError(f"{text} is no time of day")
        hour = hour % 12 + (12 if half in "pP" else 0)
    try:
        return time(hour, minute, second)
    except ValueError:
        raise ValueError(f"{text} is no time of day") from None


def _offset(text: str) -> tzinfo:
    if text in ("Z", "z"):
        return UTC
    match = _OFFSET_PARTS.fullmatch(text)
    assert match  # noqa: S101 - for the type checker
    sign, hours, minutes = match.groups()
    offset = timedelta(hours=int(hours), minutes=int(minutes or 0))
    if offset > _MOST_OFFSET or int(minutes or 0) > 59:
        raise ValueError(f"no time zone has the offset {text}")
    return timezone(-offset if sign == "-" else offset)


def named_zone(name: str, *, short: bool = False) -> tzinfo:
    """Return a time zone of the tz database. Raises ValueError, unless `short` also for CET."""
    if name.upper() in ("UTC", "GMT", "Z"):
        return UTC
    zones = zoneinfo.available_timezones()
    known = {each.lower(): each for each in zones if short or "/" in each}
    if found := known.get(name.lower()):
        return zoneinfo.ZoneInfo(found)
    near = get_close_matches(name.lower(), known, 1, 0.7)
    advice = f"did you mean {known[near[0]]}?" if near else "Europe/Berlin is one, and +01:00"
    raise ValueError(f"the time zone {name} is unknown; {advice}")


def _localised(moment: datetime, zone: tzinfo | None) -> datetime:
    """Return a local time with its zone. Raises ValueError if it is not exactly one time."""
    _checked(moment)
    first, second = (
        moment.replace(tzinfo=zone, fold=fold) if zone else _at(moment.replace(fold=fold), None)
        for fold in (0, 1)
    )
    back = _at(_at(first, UTC), zone)
    if first.utcoffset() == second.utcoffset():
        return first
    if back.replace(tzinfo=None) != moment:
        raise ValueError(f"there is no {moment:%H:%M} on {moment:%Y-%m-%d}: the clocks go forward")
    raise ValueError(
        f"{moment:%H:%M} comes twice on {moment:%Y-%m-%d}, because the clocks go back: write "
        f"{moment:%Y-%m-%d %H:%M}{first:%:z} or {second:%:z}"
    )


def _at(moment: datetime, zone: tzinfo | None) -> datetime:
    try:
        return moment.astimezone(zone)
    except (OverflowError, ValueError, OSError):
        raise ValueError("it is too far away") from None


def _checked(moment: datetime) -> datetime:
    if moment.year < _FIRST_YEAR:
        raise ValueError(f"the year is before {_FIRST_YEAR}")
    if abs(moment.utcoffset() or timedelta()) > _MOST_OFFSET:
        raise ValueError(f"no time zone has the offset {moment:%:z}")
    _at(moment, UTC)
    return moment
