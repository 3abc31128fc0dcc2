"""Handlers as aiosmtpd's documentation shows them; each notes what it saw in `seen`."""

from __future__ import annotations

import email.message
import io
from typing import Any

from aiosmtpd.handlers import AsyncMessage, Debugging, Message
from aiosmtpd.smtp import MISSING

LIVE: dict[str, Any] = {}


def live(name: str) -> Any:
    """Return a handler that the test has made."""
    return LIVE[name]


class ExampleHandler:
    """That of "Using the controller" in aiosmtpd's documentation."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    async def handle_RCPT(
        self, server: Any, session: Any, envelope: Any, address: str, rcpt_options: list[str]
    ) -> str:
        if not address.endswith("@example.com"):
            return "550 not relaying to that domain"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        self.seen.append(f"Message from {envelope.mail_from}")
        self.seen.append(f"Message for {envelope.rcpt_tos}")
        for line in envelope.content.decode("utf8", errors="replace").splitlines():
            self.seen.append(f"> {line}".strip())
        return "250 Message accepted for delivery"


class Greeter:
    """Answers HELO and EHLO, the latter in the form with five arguments."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    async def handle_HELO(self, server: Any, session: Any, envelope: Any, hostname: str) -> str:
        if hostname == "bad.example":
            return "550 5.7.1 Not you"
        session.host_name = hostname
        return f"250 {server.hostname}"

    async def handle_EHLO(
        self, server: Any, session: Any, envelope: Any, hostname: str, responses: list[str]
    ) -> list[str]:
        if hostname == "bad.example":
            return ["550 5.7.1 Not you"]
        session.host_name = hostname
        session.note = hostname
        envelope.note = session.peer[0]
        return [responses[0], "250-X-GREETER", "250 HELP"]

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        note = getattr(envelope, "note", "")
        self.seen.append((session.host_name, session.extended_smtp, session.note, note))
        self.seen.append((envelope.mail_options, envelope.smtp_utf8, envelope.original_content))
        return "250 2.0.0 noted"


class OldGreeter:
    """Answers EHLO in the older form with four arguments, and pushes a line."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    async def handle_EHLO(self, server: Any, session: Any, envelope: Any, hostname: str) -> str:
        session.host_name = hostname
        await server.push("250-X-OLD")
        return "250 HELP"


class Clerk:
    """Answers all other commands."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    async def handle_MAIL(
        self, server: Any, session: Any, envelope: Any, address: str, mail_options: list[str]
    ) -> Any:
        self.seen.append(("MAIL", address, mail_options))
        if address.startswith("missing@"):
            return MISSING
        if address.startswith("forget@"):
            return "250 ok"
        if address.startswith("bad@"):
            envelope.mail_from = address
            return "451 4.7.1 Come back"
        envelope.mail_from = address
        envelope.mail_options.extend(mail_options)
        return "250 2.1.0 Sender noted"

    async def handle_RCPT(
        self, server: Any, session: Any, envelope: Any, address: str, rcpt_options: list[str]
    ) -> Any:
        self.seen.append(("RCPT", address, rcpt_options))
        if address.startswith("missing@"):
            return MISSING
        if address.startswith("two@"):
            await server.push("250-one")
        if address.startswith("refused@"):
            return "550 5.1.1 No such user"
        envelope.rcpt_tos.append(address)
        return "250 2.1.5 Noted" if address.startswith("two@") else "251 2.1.5 Will forward"

    async def handle_VRFY(self, server: Any, session: Any, envelope: Any, address: str) -> str:
        return f"250 2.1.5 <{address}>" if address == "r@example.com" else "550 5.1.1 Unknown"

    async def handle_NOOP(self, server: Any, session: Any, envelope: Any, arg: Any) -> str:
        return f"250 2.0.0 {arg!r}"

    async def handle_RSET(self, server: Any, session: Any, envelope: Any) -> str:
        return "250 2.0.0 Forgotten"

    async def handle_QUIT(self, server: Any, session: Any, envelope: Any) -> str:
        return "221 2.0.0 See you"

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> Any:
        self.seen.append(("DATA", envelope.mail_from, envelope.rcpt_tos, envelope.content))
        if b"spam" in envelope.content:
            return "554 5.7.1 Spam"
        if b"missing" in envelope.content:
            return MISSING
        if b"raise" in envelope.content:
            raise RuntimeError("on purpose")
        return "250 2.6.0 Thank you"


class Forgetter(Clerk):
    """Remembers nothing."""

    @property
    def seen(self) -> list[Any]:
        return []

    @seen.setter
    def seen(self, value: list[Any]) -> None:
        pass


class Rescuer(Clerk):
    """Answers for its own errors."""

    async def handle_exception(self, error: Exception) -> str:
        self.seen.append(repr(error))
        return "542 Internal server error"


class Debug(Debugging):
    """aiosmtpd's Debugging with a stream that the test reads."""

    def __init__(self) -> None:
        super().__init__(io.StringIO())

    @property
    def seen(self) -> list[Any]:
        return [self.stream.getvalue()]  # type: ignore[attr-defined]


class Parsed(Message):
    """Derived from aiosmtpd's Message."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def handle_message(self, message: email.message.Message) -> None:
        self.seen.append(message.as_bytes())


class AsyncParsed(AsyncMessage):
    """Derived from aiosmtpd's AsyncMessage."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    async def handle_message(self, message: email.message.Message) -> None:
        self.seen.append(message.as_bytes())
