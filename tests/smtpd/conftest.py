"""Every test of smtpd checks that contents change their state only as docs/states.md says."""

from __future__ import annotations

from typing import Any

import pytest

from pgmta.intake.content import TRANSITIONS, Content


@pytest.fixture(autouse=True)
def checked_states(monkeypatch: pytest.MonkeyPatch) -> None:
    def setattr_checked(self: Content, name: str, value: Any) -> None:
        if name == "state" and (before := getattr(self, "state", None)) is not None:
            assert value is before or value in TRANSITIONS[before], f"{before} to {value}"
        object.__setattr__(self, name, value)

    monkeypatch.setattr(Content, "__setattr__", setattr_checked)
