"""All tests of smtpd: states change as docs/develop/states.md says, and pauses are short."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import smtpd.server.server
import smtpd.session.auth_command
import smtpd.session.connection
import smtpd.tls.server_handshake
from smtpd.server.server import Server
from tests.support.certificates import Certificate
from tests.support.transitions import checked_transitions


@pytest.fixture(autouse=True)
def checked_states() -> Iterator[None]:
    faults: list[AssertionError] = []
    with checked_transitions(faults.append):
        yield
    assert not faults


@pytest.fixture
def pauses() -> None:
    """Leave the pauses as long as they are, for a test that measures them."""


@pytest.fixture(autouse=True)
def _short_pauses(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the pauses with which smtpd slows clients down, unless the test uses `pauses`."""
    if "pauses" in request.fixturenames:
        return
    for module, pause in (
        (smtpd.server.server, "_REFUSAL_DELAY_S"),
        (smtpd.session.connection, "ERROR_PAUSE_S"),
        (smtpd.session.connection, "REFUSAL_DELAY_S"),
        (smtpd.session.auth_command, "FAILURE_DELAY_S"),
        (smtpd.session.auth_command, "BLOCKED_DELAY_S"),
    ):
        monkeypatch.setattr(module, pause, 0.05)
    monkeypatch.setattr(smtpd.tls.server_handshake, "_SHUTDOWN_TIMEOUT_S", 1.0)


@pytest.fixture(scope="session")
def root() -> Certificate:
    return Certificate.root()


@pytest.fixture(scope="session")
def files(root: Certificate, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The certificate of mx.example, and its key."""
    certificate, key = root.issue("mx.example").files(tmp_path_factory.mktemp("tls"))
    return {"certificate": str(certificate), "key": str(key)}


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> list[Server]:
    """The servers that the test makes."""
    made: list[Server] = []
    real = Server.__init__

    def init(self: Server, *args: Any) -> None:
        real(self, *args)
        made.append(self)

    monkeypatch.setattr(Server, "__init__", init)
    return made
