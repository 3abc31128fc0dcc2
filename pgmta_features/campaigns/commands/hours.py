"""The hours and days on which mail of a campaign may begin, as commands write them (pure)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches

from pgmta.errors import ConfigError

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")

_HOURS = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)-([01]?\d|2[0-4]):([0-5]\d)", re.ASCII)


def read_hours(text: str) -> tuple[str, str]:
    """Return when a window such as 09:00-17:30 opens and closes. Raises ConfigError."""
    found = _HOURS.fullmatch(text.replace(" ", ""))
    if not found or (found[3] == "24" and found[4] != "00"):
        raise ConfigError([f"--hours {text!r}: write when they begin and end, as 09:00-17:30"])
    opens, closes = f"{int(found[1]):02}:{found[2]}", f"{int(found[3]):02}:{found[4]}"
    if opens == closes:
        raise ConfigError([f"--hours {text!r}: they begin and end at the same time; all day is "
                           "00:00-24:00"])  # fmt: skip
    return opens, closes


def read_days(text: str) -> list[int]:
    """Return days of the week, 1 for Monday, of a text such as Mon-Fri,Sun. Raises ConfigError."""
    found = set()
    for part in filter(None, re.split(r"[,\s]+", re.sub(r"\s*-\s*", "-", text))):
        first, dash, last = part.partition("-")
        begin = end = _day(first)
        if dash:
            end = _day(last)
        found |= {(begin + n) % 7 + 1 for n in range((end - begin) % 7 + 1)}
    if not found:
        raise ConfigError(["--days: it names no day; write Mon-Fri, or Tue,Thu"])
    return sorted(found)


def _day(name: str) -> int:
    """Return the number of a day from 0 on."""
    known = [day.lower() for day in DAYS]
    full = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
    low = name.lower()
    if low in known:
        return known.index(low)
    if low in full:
        return full.index(low)
    near = get_close_matches(low, [*known, *full], 1)
    hint = f"did you mean {near[0].capitalize()}?" if near else f"there are {', '.join(DAYS)}"
    raise ConfigError([f"--days: {name!r} is no day of the week; {hint}"])


def hours_text(opens: str, closes: str, days: Sequence[int], zone: str) -> str:
    """Return a window in words: Mon-Fri 09:00-17:30 Europe/Berlin."""
    runs: list[list[int]] = []
    for day in days:
        if runs and runs[-1][-1] == day - 1:
            runs[-1].append(day)
        else:
            runs.append([day])
    names = [
        DAYS[run[0] - 1] + ("" if len(run) == 1 else ("," if len(run) == 2 else "-")
                            + DAYS[run[-1] - 1])
        for run in runs
    ]  # fmt: skip
    every = len(days) == len(DAYS)
    return f"{'' if every else ','.join(names) + ' '}{opens}-{closes} {zone}"
