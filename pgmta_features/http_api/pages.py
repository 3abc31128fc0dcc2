"""Lists: whose they are, which page is asked for, and what a page has."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
)

from pgmta.config.types import hint
from pgmta.mail.names import check_tenant
from pgmta_features.http_api.operation import MAX_ID, Received, id_of
from pgmta_features.http_api.problem import Problem

_NUMBER = re.compile(r"[0-9]{1,19}", re.ASCII)


def words_of_list(known: Sequence[str], noun: str) -> Callable[[str], str]:
    """Return a validator of words with commas between them, each of which is known."""

    def check(text: str) -> str:
        for word in text.split(","):
            if word not in known:
                raise ValueError(f"there is no {noun} {word[:40]!r}; {hint(word, known)}")
        return text

    return check


class TenantQuery(Received):
    """Whose thing it is."""

    tenant: Annotated[str, AfterValidator(check_tenant)] | None = Field(
        default=None, description="for keys of any tenant; others have their own"
    )


class PageQuery(Received):
    """Which page of a list it is."""

    limit: int = Field(default=100, ge=1, le=1000, description="entries of a page, at most")
    after: str | None = Field(default=None, description="`next` of the page before")

    def after_id(self, first: int = 0) -> int:
        """Return the id behind which the page begins; `first` for the first page.

        Raises Problem.
        """
        if self.after is None:
            return first
        if not (found := id_of(self.after)):
            raise no_place()
        return found

    def after_numbers(self, count: int) -> list[int] | None:
        """Return the numbers of a place such as 12.3; None for the first page. Raises Problem."""
        if self.after is None:
            return None
        words = self.after.split(".")
        numbers = [int(word) for word in words if _NUMBER.fullmatch(word)]
        if len(words) != count or len(numbers) != count or max(numbers) > MAX_ID:
            raise no_place()
        return numbers


class Page[T](BaseModel):
    """A page of a list. `next` is for the parameter `after`; null on the last page."""

    model_config = ConfigDict(json_schema_extra={"required": ["data", "next"]})

    data: list[T]
    next: str | None = None

    @model_serializer(mode="wrap")
    def _with_next(self, inner: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {**inner(self), "next": self.next}  # null too, where other nulls are left out


def cut[R](rows: list[R], limit: int, place: Callable[[R], object]) -> tuple[list[R], str | None]:
    """Return the rows of a page and its `next`, of rows that were read to one beyond the limit."""
    return rows[:limit], str(place(rows[limit - 1])) if len(rows) > limit else None


def no_place() -> Problem:
    """Return the problem of an `after` that no page has as `next`."""
    detail = "It is not the `next` of a page of this list."
    return Problem(400, "invalid", f"after: {detail}",
                   errors=[{"parameter": "after", "detail": detail}])  # fmt: skip
