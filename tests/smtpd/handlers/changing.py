"""Handlers that change what they get."""

from __future__ import annotations

from typing import Any

from aiosmtpd.smtp import MISSING


class Rewriter:
    """Does with an address what its local part says."""

    async def handle_MAIL(
        self, server: Any, session: Any, envelope: Any, address: str, options: list[str]
    ) -> str:
        word = address.partition("@")[0]
        senders: dict[str, Any] = {
            "null": "",
            "number": 5,
            "wrong": "a\r\n@b",
            "utf8": "ü@b.example",
        }
        envelope.mail_from = senders.get(word, f"{word}+noted@a.example")
        return "250 2.1.0 Noted"

    async def handle_RCPT(
        self, server: Any, session: Any, envelope: Any, address: str, options: list[str]
    ) -> Any:
        word = address.partition("@")[0]
        addresses: list[Any] = envelope.rcpt_tos
        if word == "alias":
            addresses += ["one@example.org", "two@example.org"]
        elif word == "outside":
            addresses.append("x@elsewhere.example")
        elif word == "inject":
            addresses.append("x@example.org>\r\nRCPT TO:<y@example.org")
        elif word == "number":
            addresses.append(5)
        elif word == "gone":
            envelope.rcpt_tos = None
        elif word == "deleted":
            del envelope.rcpt_tos
        elif word == "drop":
            pass
        elif word == "only":
            envelope.rcpt_tos = [address]
        elif word == "refuse":
            addresses.clear()
            return "550 5.1.1 No"
        elif word == "missing":
            return MISSING
        else:
            addresses.append(address)
        return "250 2.1.5 Noted"

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> Any:
        content = envelope.content
        if b"change" in content:
            envelope.content = b"X-Changed: yes\r\n" + content
        elif b"dots" in content:
            envelope.content = b".\r\n..\r\n.x\r\n.\r\n.\r\nno line end"
        elif b"empty" in content:
            envelope.content = b""
        elif b"large" in content:
            envelope.content = b"x" * 2_000_000 + b"\r\n"
        elif b"huge" in content:
            envelope.content = b"x" * 4_000_000
        elif b"smuggle" in content:
            envelope.content = b"a\n.\nMAIL FROM:<evil@a.example>\r\n"
        elif b"text" in content:
            envelope.content = "text"
        elif b"none left" in content:
            envelope.rcpt_tos.clear()
        elif b"redirect" in content:
            envelope.rcpt_tos = ["new@example.org"]
            envelope.mail_from = "new@a.example"
        elif b"accepted" in content:
            return "251 2.0.0 not this code"
        elif b"default" in content:
            return MISSING
        elif b"bye" in content:
            return "421 4.3.2 Bye"
        elif b"refuse" in content:
            return "554 5.7.1 No"
        return "250 2.6.0 Mine"


class Aliases:
    """Gives recipients other addresses: `x+y+z` becomes y and z, and `x` stays."""

    def __init__(self) -> None:
        self.refused: list[str] = []

    async def handle_RCPT(
        self, server: Any, session: Any, envelope: Any, address: str, options: list[str]
    ) -> str:
        local, _, domain = address.partition("@")
        if local == "second" and address not in self.refused:
            self.refused.append(address)
            return "450 4.1.1 Once more"
        others = local.split("+")[1:]
        envelope.rcpt_tos += [f"{name}@{domain}" for name in others] or [address]
        return "250 2.1.5 Ok"

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        words = envelope.content.decode().split()
        if "swap" in words:
            envelope.rcpt_tos[0] = words[-1]
        elif "add" in words:
            envelope.rcpt_tos += words[-2:]
        elif "remove" in words:
            envelope.rcpt_tos.remove(words[-1])
        return "250 2.0.0 Ok"


class OpenRelay:
    """Decides on recipients alone."""

    async def handle_RCPT(
        self, server: Any, session: Any, envelope: Any, address: str, options: list[str]
    ) -> str:
        if not address.startswith("friend"):
            return "550 5.7.1 No friend"
        envelope.rcpt_tos.append(address)
        return "250 2.1.5 Friend"


class Silent:
    """Has no opinion on recipients."""

    async def handle_RCPT(self, *_: Any) -> Any:
        return MISSING


class Counter:
    """Leaves all to the others and counts."""

    def __init__(self) -> None:
        self.count = 0

    async def handle_RCPT(
        self, server: Any, session: Any, envelope: Any, address: str, options: list[str]
    ) -> Any:
        self.count += 1
        return MISSING


class Archiver:
    """Names the recipients itself, before any RCPT."""

    async def handle_MAIL(
        self, server: Any, session: Any, envelope: Any, address: str, options: list[str]
    ) -> str:
        envelope.mail_from = address
        envelope.rcpt_tos.append("archive@x.example")
        return "250 2.1.0 Noted"
