"""Rates as configurations and commands write them: 50/s, 600/min."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator

from pgmta.errors import ConfigError

_RATE = re.compile(r"(\d{1,6}(?:\.\d{1,6})?)(?:\s*/\s*(s|min|h|d))?", re.ASCII)
_LONG_UNIT = re.compile(
    r"(\d{1,6}(?:\.\d{1,6})?)\s*/\s*(m|mins|minutes?|sec|secs|seconds?|hr|hours?|days?)", re.ASCII
)
_SECONDS = {None: 1, "s": 1, "min": 60, "h": 3600, "d": 86400}
_MAX_RATE_PER_S = 100_000  # the table of budgets has no higher one

LOST = {
    "database": "PostgreSQL answers too late",
    "host": "the processors of a worker's host are busy",
    "next hop": "the next hop has no free connection in time",
}
"""Why times of a rate are lost: the words for `lost_why` of the table of budgets."""


def parse_rate(value: Any) -> float:
    """Return a number per second of 50, 50/s, 600/min, 100/h or 1000/d. Raises ValueError."""
    match = None if isinstance(value, bool) else _RATE.fullmatch(str(value).strip())
    rate = float(match[1]) / _SECONDS[match[2]] if match else 0.0
    if not 0 < rate <= _MAX_RATE_PER_S:
        if meant := _LONG_UNIT.fullmatch(str(value).strip()):
            unit = "min" if meant[2][0] == "m" else meant[2][0]
            near = f"{meant[1]}/{unit}"
            raise ValueError(f"{value!r} has no unit s, min, h or d; did you mean {near}?")
        raise ValueError(f"expected a number per s, min, h or d, such as 50/s, not {value!r}")
    return rate


def rate_text(rate: float) -> str:
    """Return a rate in the unit in which it is shortest."""
    for unit in ("s", "min", "h"):
        number = rate * _SECONDS[unit]
        if number >= 1 and abs(number - round(number)) < 1e-6 * number:
            return f"{round(number):,}/{unit}".replace(",", "")
    return f"{rate:.6g}/s" if rate >= 1 else f"{rate * 60:.6g}/min"


Rate = Annotated[float, BeforeValidator(parse_rate)]


def read_rate(text: str, flag: str) -> float:
    """Return the rate per second that was given to a flag. Raises ConfigError."""
    try:
        return parse_rate(text)
    except ValueError as error:
        raise ConfigError([f"{flag}: {error}"]) from None
