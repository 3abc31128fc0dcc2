"""The hooks that are asked about a connection: CONNECT, STARTTLS, DISCONNECT."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from smtpd.hooks.asking import Asking
from smtpd.hooks.phases import HookError, Phases, Step
from smtpd.tls.facts import TlsFacts

type Greeted = Callable[[str], None]


class ConnectionHooks:
    """Asks before the greeting and after a TLS handshake, and says when the session has ended."""

    def __init__(self, asking: Asking, phases: Phases) -> None:
        self._asking = asking
        self._connect = phases.connect
        self._starttls = phases.starttls
        self._disconnect = phases.disconnect
        self._began = False

    def connect(self, answered: Greeted) -> bool:
        """Ask the hooks before the greeting; return False if there are none.

        `answered` gets their reply later, or nothing if they leave the greeting to smtpd.
        """
        self._began = True
        if not self._connect:
            return False
        self._asking.consult(self._connect, (), lambda answer: answered(answer or ""))
        return True

    def encrypted(self, facts: TlsFacts) -> None:
        """Note the TLS of the session, and forget the login of before (RFC 3207, section 4.2)."""
        asking = self._asking
        asking.server.transport.look()
        extra = asking.server.transport.get_extra_info
        session: Any = asking.commands.session
        session.ssl = {
            "peercert": extra("peercert"),
            "cipher": extra("cipher") or (facts.cipher, facts.version, 0),
            "compression": extra("compression"),
        }
        session.authenticated = session.auth_data = None

    async def secured(self) -> bool:
        """Ask the hooks after a TLS handshake; return whether the session may go on."""
        asking = self._asking
        for step in self._starttls:
            asking.server.envelope = asking.envelope()
            arguments = (asking.server, asking.commands.session, asking.server.envelope)
            try:
                answer, _ = await step.ask(arguments, rescue=False)
            except HookError as error:
                step.hook.failed(step.name, error.inner, asking.client)
                if step.hook.on_failure == "accept":
                    continue
                return False
            if not _true(answer):
                return False
        return True

    def disconnect(self) -> None:
        """Say that the session has ended; once, and only if it has begun."""
        began, self._began = self._began, False
        if not (began and self._disconnect):
            return
        asking = self._asking
        arguments = (asking.server, asking.commands.session, asking.envelope())
        for step in self._disconnect:
            self._say(step, arguments)

    def _say(self, step: Step, arguments: tuple[Any, ...]) -> None:
        client = self._asking.client

        def came(_: Any, error: BaseException | None) -> None:
            if error:
                step.hook.failed(step.name, error, client)

        step.hook.runner.call(step.method, None, arguments, came)


def _true(answer: Any) -> bool:
    try:
        return bool(answer)
    except Exception:  # it is the hook's own class
        return False
