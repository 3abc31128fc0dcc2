"""The results of the checks of `queuectl doctor`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Literal

type Severity = Literal["error", "warning", "unknown", "ok"]
"""`error`: mail is lost, late or not sent. `warning`: it soon may be. `unknown`: not checked."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The result of a check, and what to do about it; the remedy is '' if nothing is wrong."""

    check: str
    severity: Severity
    finding: str
    remedy: str = ""


NOTHING = "nothing wrong"
"""The finding of a check that has nothing to say."""

type Check = Callable[[], AsyncIterator[Diagnosis]]
"""A check yields the faults that it finds."""


def error(check: str, finding: str, remedy: str) -> Diagnosis:
    """Return a diagnosis of what loses, delays or stops mail."""
    return Diagnosis(check, "error", finding, remedy)


def warning(check: str, finding: str, remedy: str) -> Diagnosis:
    """Return a diagnosis of what may do so soon."""
    return Diagnosis(check, "warning", finding, remedy)


def unknown(check: str, finding: str, remedy: str = "") -> Diagnosis:
    """Return a diagnosis of what could not be checked."""
    return Diagnosis(check, "unknown", finding, remedy)
