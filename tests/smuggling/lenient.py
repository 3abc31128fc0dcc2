"""A server that takes more than CRLF for the end of a line."""

from __future__ import annotations

import re
import socketserver
import threading
from dataclasses import dataclass, field
from typing import Self, cast


@dataclass(frozen=True)
class Habits:
    """Line ends of a server."""

    newline: re.Pattern[bytes]
    drops_nuls: bool = False


HABITS = {
    "LF": Habits(re.compile(rb"\r*\n")),
    "CR or LF": Habits(re.compile(rb"\r\n|\n|\r")),
    "CR or LF, no NULs": Habits(re.compile(rb"\r\n|\n|\r"), drops_nuls=True),
}


class _Session(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        self._input = b""
        self._skip_lf = False
        self._say("220 lenient ESMTP")
        recipients: list[bytes] = []
        while (line := self._line()) is not None:
            verb = line[:4].upper()
            if verb == b"RCPT":
                recipients.append(line[line.index(b"<") + 1 : line.index(b">")])
            elif verb == b"DATA":
                self._say("354 go on")
                if not self._content(recipients):
                    return
                recipients = []
            if verb == b"QUIT":
                self._say("221 bye")
                return
            known = verb in (b"EHLO", b"HELO", b"MAIL", b"RCPT", b"DATA", b"RSET", b"NOOP")
            self._say("250 2.0.0 ok" if known else "500 what?")

    def _content(self, recipients: list[bytes]) -> bool:
        lines = []
        while (line := self._line()) != b".":
            if line is None:
                return False
            lines.append(line.removeprefix(b"."))
        server = cast(_Server, self.server)
        for recipient in recipients:
            server.sink.arrived.setdefault(recipient.decode(), []).append(b"\n".join(lines))
        return True

    def _say(self, reply: str) -> None:
        self.wfile.write(reply.encode() + b"\r\n")

    def _line(self) -> bytes | None:
        habits = cast(_Server, self.server).sink.habits
        while True:
            if self._skip_lf and self._input:
                self._input = self._input.removeprefix(b"\n")
                self._skip_lf = False
            if found := habits.newline.search(self._input):
                line = self._input[: found.start()]
                self._input = self._input[found.end() :]
                # a CR at the end of what has come may be half of CRLF
                self._skip_lf = not self._input and found[0] == b"\r"
                return line
            octets = self.connection.recv(65536)
            if not octets:
                return None
            self._input += octets.replace(b"\0", b"") if habits.drops_nuls else octets


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    sink: LenientSink


@dataclass
class LenientSink:
    """Keeps what arrives for each recipient."""

    habits: Habits
    arrived: dict[str, list[bytes]] = field(default_factory=dict)
    port: int = 0

    def __enter__(self) -> Self:
        self._server = _Server(("127.0.0.1", 0), _Session)
        self._server.sink = self
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.05,)).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
