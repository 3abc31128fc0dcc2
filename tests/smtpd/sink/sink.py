"""A sink of tests, with its page, and a client that sees what the page answers."""

from __future__ import annotations

import http.client
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.support.waiting import PATIENCE, free_port, until

SMTPD = [sys.executable, "-m", "smtpd"]


class Answer(NamedTuple):
    """An answer of the page."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode()


class Sink:
    """The command `smtpd sink`, and its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port, self.page = free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.page}"
        self._number = 0

    def put(self, content: bytes, *recipients: str, sender: str = "s@a.example") -> str:
        """Put a mail where the sink keeps it, as it keeps it; return its name."""
        self._number += 1
        name = f"{1_800_000_000 + self._number}.M1P1Q{self._number}.host"
        lines = [f"Return-Path: <{sender}>\r\n"]
        lines += [f"Delivered-To: {each}\r\n" for each in recipients or ("r@b.example",)]
        part = self.folder / name
        part.write_bytes("".join(lines).encode() + content)
        part.rename(self.folder / "new" / name)  # as a Maildir: the page reads whole files alone
        return name

    def ask(
        self, path: str, method: str = "GET", body: bytes | None = None, **headers: str
    ) -> Answer:
        """Send a request; `_` stands for - in names of fields."""
        client = http.client.HTTPConnection("127.0.0.1", self.page, timeout=PATIENCE)
        try:
            fields = {name.replace("_", "-"): value for name, value in headers.items()}
            client.request(method, path, body, fields)
            answer = client.getresponse()
            got = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, got, answer.read())
        finally:
            client.close()

    def _answers(self) -> bool:
        try:
            return self.ask("/").status == 200
        except ConnectionRefusedError:
            return False

    @contextmanager
    def running(self, said: Path) -> Iterator[Sink]:
        """Run it; what it says goes into a file."""
        ports = ["--port", str(self.port), "--page-port", str(self.page)]
        command = [*SMTPD, "sink", *ports, "--maildir", str(self.folder)]
        with said.open("w") as file, subprocess.Popen(command, stdout=file) as process:
            try:
                until(self._answers, describe="the page answers")
                yield self
                process.terminate()
                assert process.wait(PATIENCE) == 0
            finally:
                process.kill()
