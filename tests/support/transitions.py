"""Checks each change of a state against the table of its transitions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from pgmta.intake import content
from smtpd.session import phase
from smtpd.session.connection import Connection


@contextmanager
def checked_transitions(fault: Callable[[AssertionError], None]) -> Iterator[None]:
    """Give `fault` an error for each wrong change of a content's state or a connection's phase."""
    with pytest.MonkeyPatch.context() as patched:
        for kind, field, table in (
            (content.Content, "state", content.TRANSITIONS),
            (Connection, "phase", phase.TRANSITIONS),
        ):
            patched.setattr(kind, "__setattr__", _checked(field, table, fault))
        yield


def _checked(
    field: str, table: Mapping[Any, Collection[Any]], fault: Callable[[AssertionError], None]
) -> Callable[[Any, str, Any], None]:
    def setattr_checked(self: Any, name: str, value: Any) -> None:
        if name == field:
            before = getattr(self, field, None)
            if before is not None and value is not before and value not in table[before]:
                fault(AssertionError(f"{field}: {before} to {value}"))
        object.__setattr__(self, name, value)

    return setattr_checked
