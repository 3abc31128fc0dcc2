"""Every test of smtpd checks that contents change their state only as docs/states.md says."""

from __future__ import annotations

from typing import Any

import pytest

from pgmta.intake.content import TRANSITIONS, Content
from smtpd.hooks import hook_set
from smtpd.hooks.trial import Trial
from smtpd.hooks.watchdog import Watchdog


@pytest.fixture(autouse=True)
def checked_states(monkeypatch: pytest.MonkeyPatch) -> None:
    def setattr_checked(self: Content, name: str, value: Any) -> None:
        if name == "state" and (before := getattr(self, "state", None)) is not None:
            assert value is before or value in TRANSITIONS[before], f"{before} to {value}"
        object.__setattr__(self, name, value)

    monkeypatch.setattr(Content, "__setattr__", setattr_checked)


@pytest.fixture(params=["thread", "direct"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where hooks run that await nothing; direct calls begin after the first call.

    The sessions of `serving` are not in the main thread, which alone gets signals. So there is no
    watchdog.
    """
    if request.param == "direct":
        monkeypatch.setattr(Watchdog, "possible", lambda: True)
        monkeypatch.setattr(Watchdog, "start", lambda _: None)
        monkeypatch.setattr(hook_set, "Trial", lambda: Trial(0))
    return str(request.param)
