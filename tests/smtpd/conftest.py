"""All tests of smtpd: contents change their state as docs/states.md says, and pauses are short."""

from __future__ import annotations

from typing import Any

import pytest

import smtpd.connection.connection
import smtpd.connection.long_line
import smtpd.fairness.closing
import smtpd.server.server
import smtpd.session.exchange
import smtpd.tls.handshake
from pgmta.intake.content import TRANSITIONS, Content


@pytest.fixture(autouse=True)
def checked_states(monkeypatch: pytest.MonkeyPatch) -> None:
    def setattr_checked(self: Content, name: str, value: Any) -> None:
        if name == "state" and (before := getattr(self, "state", None)) is not None:
            assert value is before or value in TRANSITIONS[before], f"{before} to {value}"
        object.__setattr__(self, name, value)

    monkeypatch.setattr(Content, "__setattr__", setattr_checked)


@pytest.fixture
def pauses() -> None:
    """Leave the pauses as long as they are, for a test that measures them."""


@pytest.fixture(autouse=True)
def _short_pauses(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the pauses with which smtpd slows clients down, unless the test uses `pauses`."""
    if "pauses" in request.fixturenames:
        return
    for module in (
        smtpd.fairness.closing,
        smtpd.connection.connection,
        smtpd.connection.long_line,
        smtpd.server.server,
    ):
        monkeypatch.setattr(module, "_DELAY", 0.05)
    monkeypatch.setattr(smtpd.session.exchange, "_SLOW", 0.05)
    monkeypatch.setattr(smtpd.session.exchange, "_BLOCKED", 0.05)
    monkeypatch.setattr(smtpd.tls.handshake, "_SHUTDOWN", 1.0)
