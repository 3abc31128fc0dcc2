"""The conversation with smtpd (RFC 5321), one command after the other."""

from __future__ import annotations

import contextlib
import socket
import sys

from smtpd.sendmail.settings import Settings
from smtpd.sendmail.submitted_envelope import SubmittedEnvelope

_MAX_REPLY_OCTETS = 1 << 16
_MAX_MESSAGE_OCTETS = 1 << 28  # if smtpd gives no number
_FINAL_REPLY_TIMEOUT_S = 600.0  # after the final dot (RFC 5321, section 4.5.3.2.6)


class Away(Exception):
    """smtpd can't take the message now. `unknown`: it may have taken it nevertheless."""

    def __init__(self, reason: str, *, unknown: bool = False) -> None:
        super().__init__(reason)
        self.unknown = unknown


class Deferred(Away):
    """smtpd can't take this message now, and may take others."""


class Refused(Exception):
    """smtpd refuses the message for good."""


class Taken:
    """The result of a message that smtpd has taken: its reply, and the recipients left out."""

    def __init__(self) -> None:
        self.reply = ""
        self.refused: dict[str, str] = {}
        """Recipients refused for good, with the reply."""
        self.later: list[str] = []
        """Recipients refused for now."""


class SmtpClient:
    """One connection to smtpd. `verbose` prints the conversation to standard error."""

    def __init__(self, settings: Settings, *, verbose: bool = False) -> None:
        self._verbose = verbose
        self._seconds = settings.seconds
        self._extensions: set[str] = set()
        self.largest = _MAX_MESSAGE_OCTETS
        """Octets of the largest message that smtpd takes."""
        self._buffer = b""
        server = settings.server
        try:
            if server.startswith("/"):
                self.socket = socket.socket(socket.AF_UNIX)
                self.socket.settimeout(self._seconds)
                self.socket.connect(server)
            else:
                host, _, port = server.rpartition(":")
                place = (host.strip("[]"), int(port))
                self.socket = socket.create_connection(place, timeout=self._seconds)
        except OSError as error:
            raise Away(f"no connection to {server}: {error.strerror or error}") from None

    def hello(self, name: str) -> None:
        """Wait for the greeting, and say EHLO. Raises Away."""
        self._expect("")
        reply = self._expect(f"EHLO {name}")
        lines = [line.upper().split() for line in reply.split("\n")[1:] if line.strip()]
        self._extensions = {words[0] for words in lines}
        for words in lines:
            if words[0] == "SIZE" and len(words) > 1 and words[1].isdecimal() and int(words[1]):
                self.largest = int(words[1])

    def send(self, envelope: SubmittedEnvelope, content: bytes) -> Taken:
        """Have a message taken for all recipients that smtpd accepts. Raises Away, Refused."""
        eight = not content.isascii()
        try:
            sender = envelope.sender
            reply = self._say(f"MAIL FROM:<{sender}>{self._parameters(envelope, eight=eight)}")
            self._fit(reply)
            result = Taken()
            taken = 0
            for recipient in envelope.recipients:
                reply = self._say(f"RCPT TO:<{recipient}>{self._notify(envelope)}")
                if reply[0] == "2":
                    taken += 1
                elif reply[0] == "5":
                    result.refused[recipient] = reply
                else:
                    result.later.append(recipient)
            if not taken:
                self._say("RSET")
                if result.later:
                    raise Deferred(reply)
                raise Refused(next(iter(result.refused.values()), reply))
            self._fit(self._say("DATA"), "3", about=Deferred)
            self._transfer(content)
            self.socket.settimeout(max(self._seconds, _FINAL_REPLY_TIMEOUT_S))
            result.reply = self._final()
        except UnicodeEncodeError:
            raise Refused("an address is not in UTF-8") from None
        return result

    def ask(self, envelope: SubmittedEnvelope) -> dict[str, str]:
        """Return the reply to each recipient, and send nothing. Raises Away, Refused."""
        parameters = self._parameters(envelope, eight=False)
        self._fit(self._say(f"MAIL FROM:<{envelope.sender}>{parameters}"))
        replies = {each: self._say(f"RCPT TO:<{each}>") for each in envelope.recipients}
        self._say("RSET")
        return replies

    def quit(self) -> None:
        """Say goodbye, and close."""
        with contextlib.suppress(Away):
            self._say("QUIT")
        self.close()

    def close(self) -> None:
        """Close at once."""
        self.socket.close()

    def _parameters(self, envelope: SubmittedEnvelope, *, eight: bool) -> str:
        words = []
        if envelope.body or eight:
            words.append(f"BODY={'8BITMIME' if eight else envelope.body}")
        if not "".join((envelope.sender, *envelope.recipients)).isascii():
            if "SMTPUTF8" not in self._extensions:
                raise Refused("smtpd does not take addresses beyond ASCII (SMTPUTF8)")
            words.append("SMTPUTF8")
        if "DSN" in self._extensions:
            words += [f"RET={envelope.ret}"] if envelope.ret else []
            words += [f"ENVID={envelope.envid}"] if envelope.envid else []
        return "".join(f" {word}" for word in words)

    def _notify(self, envelope: SubmittedEnvelope) -> str:
        if envelope.notify and "DSN" in self._extensions:
            return f" NOTIFY={envelope.notify}"
        return ""

    def _transfer(self, content: bytes) -> None:
        stuffed = content.replace(b"\r\n.", b"\r\n..")
        if stuffed[:1] == b".":
            stuffed = b"." + stuffed
        end = b".\r\n" if not stuffed or stuffed.endswith(b"\r\n") else b"\r\n.\r\n"
        try:
            self.socket.sendall(stuffed)
        except OSError as error:
            raise Away(f"connection lost: {error.strerror or error}") from None
        try:
            self.socket.sendall(end)
        except OSError as error:
            raise Away(f"connection lost: {error.strerror or error}", unknown=True) from None

    def _final(self) -> str:
        try:
            reply = self._reply()
        except Away as error:
            raise Away(str(error), unknown=True) from None
        self._fit(reply, about=Deferred)
        return reply

    def _expect(self, command: str) -> str:
        reply = self._say(command) if command else self._reply()
        if reply[0] != "2":
            raise Away(reply)  # the reply is about the server, not about this message
        return reply

    def _fit(self, reply: str, digit: str = "2", *, about: type[Away] = Away) -> None:
        if reply[0] == "5":
            raise Refused(reply)
        if reply[0] != digit:
            raise about(reply) if reply[0] == "4" and reply[:3] != "421" else Away(reply)

    def _say(self, command: str) -> str:
        if any(char < " " or char == "\x7f" for char in command):
            # such a text could be a second command, whose reply would be taken for that of the next
            raise Refused("an address or a parameter has a control character")
        if self._buffer:
            raise Away("a reply without a command")
        if self._verbose:
            print(f"> {command}", file=sys.stderr)
        try:
            self.socket.sendall(f"{command}\r\n".encode("utf-8", "surrogateescape"))
        except OSError as error:
            raise Away(f"connection lost: {error.strerror or error}") from None
        return self._reply()

    def _reply(self) -> str:
        lines: list[str] = []
        size = 0
        while True:
            line = self._line()
            size += len(line)
            if not line[:3].isdigit() or line[:1] not in "2345" or size > _MAX_REPLY_OCTETS:
                raise Away(f"no SMTP reply: {line[:80]}")
            lines.append(line if not lines else line[4:])
            if line[3:4] != "-":
                break
        if self._verbose:
            print("\n".join(f"< {line}" for line in lines), file=sys.stderr)
        return "\n".join(lines)

    def _line(self) -> str:
        while b"\n" not in self._buffer:
            try:
                octets = self.socket.recv(1 << 16)
            except OSError as error:
                raise Away(f"no reply: {error.strerror or error}") from None
            if not octets or len(self._buffer) > _MAX_REPLY_OCTETS:
                raise Away("smtpd has closed the connection")
            self._buffer += octets
        line, _, self._buffer = self._buffer.partition(b"\n")
        text = line.rstrip(b"\r").decode("utf-8", "replace")
        return "".join(char if char.isprintable() else "?" for char in text)
