"""Section `retry` of queued.yaml, and of a route: when to try again, and when to stop trying."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, Strict, model_validator

from pgmta.config.types import Period, Section, Whole, hint
from pgmta.mail.answer_class import AnswerClass

type Unknown = Literal["retry", "hold", "delivered"]

GREYLISTED_WAIT_S = 300.0
"""Before the attempt after the first greylisted answer; most hosts ask for 5 minutes."""

FULL_JITTER = "full"
"""The word for a jitter of 1: each wait is drawn from 0 to its whole length."""

_NEVER_AGAIN = (AnswerClass.EXPIRED,)
_ADVICE = "; write attempts: 1 if there shall be no second attempt"


def _answer_class(word: object) -> object:
    known = [each.value for each in AnswerClass if each not in _NEVER_AGAIN]
    if word in _NEVER_AGAIN:
        raise ValueError("nothing is tried again after it")
    if word not in known:
        raise ValueError(f"{word!r} is no class of answers; {hint(str(word), known)}")
    return word


def _share(value: object) -> object:
    if not isinstance(value, str):
        return value
    if value != FULL_JITTER:
        raise ValueError(f"{value!r} is no number; {hint(value, [FULL_JITTER])}")
    return 1.0


def _with_unit(value: object) -> object:
    """Refuse `intervals: [5, 10]`, which some mean as minutes and others as seconds."""
    if value and isinstance(value, int | float) and not isinstance(value, bool):
        raise ValueError(f"{value} has no unit; write {value}s for seconds or {value}m for minutes")
    return value


Wait = Annotated[Period, BeforeValidator(_with_unit)]


class Exponential(Section):
    """Waits that grow: `first`, and each the `factor` longer than the one before, up to `most`."""

    shown_whole: ClassVar[bool] = True  # the reference shows the whole section as one value

    first: Wait = Field(default=60.0, description="wait after the first attempt")
    factor: Annotated[float, Strict()] = Field(
        default=2.0, ge=1, le=100, description="each wait is this many times the one before"
    )
    most: Wait = Field(default=10800.0, description="longest wait")

    @model_validator(mode="after")
    def _ordered(self) -> Exponential:
        if self.most < self.first:
            raise ValueError("most is shorter than first")
        return self

    def after(self, attempts: int) -> float:
        """Return the seconds after this number of attempts."""
        try:
            return float(min(self.first * self.factor ** (max(attempts, 1) - 1), self.most))
        except OverflowError:
            return self.most


class Waits(Section):
    """Has the keys that a class of answers may have too."""

    intervals: list[Wait] | None = Field(
        default=None,
        min_length=1,
        description="wait after the 1st, 2nd, … failed attempt; the last one repeats",
    )
    exponential: Exponential | None = Field(
        default=None,
        description="instead of intervals, {first, factor, most}: waits that grow by a factor",
    )
    expire: Wait | None = Field(default=None, description="mail fails at this age")
    attempts: Whole | None = Field(
        default=None, ge=1, description="mail fails after this number of attempts; null: any"
    )

    @model_validator(mode="after")
    def _one_way(self) -> Waits:
        given = {name for name in self.model_fields_set if getattr(self, name) is not None}
        if {"intervals", "exponential"} <= given:
            raise ValueError("intervals and exponential exclude each other")
        waits = sorted(given & {"first", "intervals", "exponential"})
        if waits and self.attempts == 1:
            raise ValueError(f"{waits[0]} is never used, because attempts is 1")
        return self

    @property
    def has_waits(self) -> bool:
        """Whether it says how long the waits are."""
        return bool(self.intervals or self.exponential)

    def after(self, attempts: int) -> float:
        """Return the seconds after this number of attempts, if `has_waits`."""
        if self.exponential:
            return self.exponential.after(attempts)
        intervals = self.intervals or [0.0]
        return intervals[min(max(attempts, 1), len(intervals)) - 1]


class ClassRetry(Waits):
    """Hold what differs for one class of answers; absent keys are those of the section."""

    first: Wait | None = Field(
        default=None, description="wait after the first such answer; then as after any other"
    )


_SHIPPED_CLASSES = {
    AnswerClass.GREYLISTED.value: ClassRetry.model_construct(first=GREYLISTED_WAIT_S)
}
_NO_CLASS_RETRY = ClassRetry()


class Retry(Waits):
    """When to try again, and when to stop trying."""

    intervals: list[Wait] = Field(
        default=[60.0, 300.0, 900.0, 3600.0, 10800.0],
        min_length=1,
        description="wait after the 1st, 2nd, … failed attempt; the last one repeats",
    )
    jitter: Annotated[float, Strict(), BeforeValidator(_share)] = Field(
        default=0.2,
        ge=0,
        le=1,
        description="shorten each wait by up to this share, by message and attempt; full: draw "
        "each wait from 0 to its length",
    )
    expire: Wait = Field(
        default=432000.0, description="mail that is still undelivered at this age fails"
    )
    unknown: Unknown = Field(
        default="retry",
        description="an outcome that no reply proves: retry; hold: the row waits for an operator; "
        "delivered: the row goes",
    )
    classes: dict[Annotated[str, BeforeValidator(_answer_class)], ClassRetry] = Field(
        default=_SHIPPED_CLASSES,
        description="other waits and bounds by class of the answer: first, intervals, exponential, "
        "expire, attempts",
    )

    def of_class(self, answer_class: str) -> ClassRetry:
        """Return what differs for a class of answers."""
        return self.classes.get(answer_class) or _SHIPPED_CLASSES.get(answer_class, _NO_CLASS_RETRY)

    def first_wait(self, answer_class: str) -> float | None:
        """Return the seconds after the first answer of a class, if they are its own."""
        own = self.of_class(answer_class)
        if "first" not in own.model_fields_set and not own.has_waits:
            own = _SHIPPED_CLASSES.get(answer_class, _NO_CLASS_RETRY)
        return own.first

    @property
    def shortest(self) -> float:
        """Seconds of the shortest wait after a first attempt."""
        classes = [own for own in self.classes.values() if own.has_waits or own.first]
        firsts = [own.first or own.after(1) for own in classes]
        return min(self.after(1), *firsts) if firsts else self.after(1)

    def over(self, base: Retry) -> Retry:
        """Return these keys of a route, and for absent ones those of the section `base`."""
        given = {name: getattr(self, name) for name in self.model_fields_set}
        if self.model_fields_set & {"intervals", "exponential"}:
            given["exponential"] = self.exponential
        classes = dict(base.classes)
        for name, own in (self.classes if "classes" in given else {}).items():
            usual = base.of_class(name)
            keys = {key: getattr(own, key) for key in own.model_fields_set}
            if own.has_waits:
                keys = {"intervals": None, "exponential": None, "first": None} | keys
            classes[name] = usual.model_copy(update=keys)
        return base.model_copy(update=given | {"classes": classes})

    def problems(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """Yield keys that can't be obeyed, because `expire` leaves no room, and the reasons."""
        if self.attempts != 1 and self._too_long(self.after(1), self.expire):
            yield ("expire",), f"is shorter than the first wait{_ADVICE}"
        for name, own in self.classes.items():
            if (own.attempts or self.attempts) == 1 or own == _SHIPPED_CLASSES.get(name):
                continue
            wait = own.first or (own if own.has_waits else self).after(1)
            if own != _NO_CLASS_RETRY and self._too_long(wait, own.expire or self.expire):
                yield ("classes", name), f"its first wait is longer than expire{_ADVICE}"

    def _too_long(self, wait: float, expire: float) -> bool:
        return wait * (1 - self.jitter) > expire


class RouteRetry(Retry):
    """Hold the keys that differ for the mail of one route."""

    shown_whole: ClassVar[bool] = True
