"""SMTP on standard input and output (-bs), while smtpd is away."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import BinaryIO

from smtpd.sendmail.exits import Exit
from smtpd.sendmail.submitted_envelope import SubmittedEnvelope

_PATH = re.compile(r"\s*<([^<>\s]*)>(.*)")

type Keep = Callable[[SubmittedEnvelope, bytes], str]
"""Keeps a message until smtpd is back, and returns its name. Raises Exit."""


class Dialogue:
    """Takes messages while smtpd is away: the least that RFC 5321 asks for (section 4.5.1)."""

    def __init__(self, source: BinaryIO, hostname: str, keep: Keep) -> None:
        self._source = source
        self._hostname = hostname
        self._keep = keep
        self._envelope: SubmittedEnvelope | None = None

    def answer_commands(self) -> None:
        """Answer commands until QUIT or the end of input."""
        self._say(f"220 {self._hostname} ESMTP, mail waits until smtpd is back")
        while line := self._source.readline():
            text = line.rstrip(b"\r\n").decode("utf-8", "surrogateescape")
            word, _, argument = text.partition(" ")
            reply = self._command(word.upper(), argument)
            self._say(reply)
            if reply.startswith("221"):
                return

    def _command(self, word: str, argument: str) -> str:
        if word in ("HELO", "EHLO"):
            self._envelope = None
            lines = [self._hostname] if word == "HELO" else [self._hostname, "8BITMIME", "DSN"]
            more = [f"250-{line}" for line in lines[:-1]]
            return "\r\n".join((*more, f"250 {lines[-1]}"))
        if word == "MAIL":
            return self._mail(argument)
        if word == "RCPT":
            return self._rcpt(argument)
        if word == "DATA":
            return self._data()
        if word == "RSET":
            self._envelope = None
            return "250 2.0.0 OK"
        if word in ("NOOP", "VRFY"):
            return "250 2.0.0 OK" if word == "NOOP" else "252 2.1.5 cannot verify"
        return "221 2.0.0 bye" if word == "QUIT" else "502 5.5.1 unknown command"

    def _mail(self, argument: str) -> str:
        match = _PATH.fullmatch(argument[5:]) if argument[:5].upper() == "FROM:" else None
        if not match:
            return "501 5.5.4 syntax: MAIL FROM:<address>"
        if self._envelope:
            return "503 5.5.1 MAIL was given already"
        values = _values(match[2])
        self._envelope = SubmittedEnvelope(
            sender=match[1], ret=values.get("RET", ""), envid=values.get("ENVID", "")
        )
        return "250 2.1.0 OK"

    def _rcpt(self, argument: str) -> str:
        match = _PATH.fullmatch(argument[3:]) if argument[:3].upper() == "TO:" else None
        if not self._envelope:
            return "503 5.5.1 MAIL first"
        if not match or not match[1]:
            return "501 5.5.4 syntax: RCPT TO:<address>"
        notify = _values(match[2]).get("NOTIFY", "")
        if self._envelope.recipients and notify != self._envelope.notify:
            return "452 4.5.3 other NOTIFY: send it in another transaction"
        self._envelope.notify = notify
        self._envelope.recipients.append(match[1])
        return "250 2.1.5 OK"

    def _data(self) -> str:
        envelope = self._envelope
        if not envelope or not envelope.recipients:
            return "503 5.5.1 RCPT first"
        self._say("354 end with a dot alone in a line")
        lines = []
        while (line := self._source.readline()) and line.rstrip(b"\r\n") != b".":
            lines.append(line[1:] if line[:1] == b"." else line)
        if not line:
            raise Exit(65, "the input ended within a message")
        content = b"".join(text.rstrip(b"\r\n") + b"\r\n" for text in lines)
        self._envelope = None
        try:
            name = self._keep(envelope, content)
        except Exit as error:
            return f"451 4.3.0 {error.reason}"
        return f"250 2.0.0 {name} waits"

    def _say(self, reply: str) -> None:
        sys.stdout.buffer.write(f"{reply}\r\n".encode())
        sys.stdout.buffer.flush()


def _values(parameters: str) -> dict[str, str]:
    pairs = (word.partition("=") for word in parameters.split())
    return {key.upper(): value for key, _, value in pairs}
