"""Recipients in a file: an address or @domain per line."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from pgmta.config.loader import mistakes
from pgmta.config.yaml_file import Key
from pgmta.errors import AddressError, ConfigError
from pgmta.logs import get
from pgmta.mail.address import lower_ascii, normalise_domain, parse_mailbox, unquoted
from smtpd.config import Relay
from smtpd.recipients.recipient_verdict import Verdict

_LOOK_INTERVAL_S = 1.0  # at whether the file has changed
_MAX_NAMED_MISTAKES = 10

log = get("smtpd")


class RecipientFile:
    """Reads the file at the start, and again in a thread when it has changed.

    A changed file with a mistake is not used: its older content counts, and the log has the
    mistake. Raises ConfigError at the start.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._state = self._stat()
        self._known = read(path)
        self._next = 0.0  # time of the next look, by the monotonic clock
        self._reading: asyncio.Task[None] | None = None

    def verdict(self, addresses: tuple[str, ...]) -> Verdict | None:
        """Return the verdict of the file as it was a second ago."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _LOOK_INTERVAL_S
            state = self._stat()
            if state != self._state and not self._reading:
                self._reading = asyncio.get_running_loop().create_task(self._read_again(state))
        return Verdict.UNKNOWN if self._known.isdisjoint(addresses) else Verdict.KNOWN

    async def look_up(self, addresses: tuple[str, ...]) -> None:
        """Do nothing: the file is in memory."""

    async def stop(self) -> None:
        """Read no more."""
        if self._reading:
            self._reading.cancel()

    def _stat(self) -> tuple[int, int, int] | None:
        try:
            stat = self._path.stat()
        except OSError:
            return None
        return stat.st_ino, stat.st_mtime_ns, stat.st_size

    async def _read_again(self, state: tuple[int, int, int] | None) -> None:
        try:
            self._known = await asyncio.to_thread(read, self._path)
            log.info("recipients read again", file=str(self._path), number=len(self._known))
        except ConfigError as error:
            log.error("recipients kept as they were", problems=error.problems)
        finally:
            self._state, self._reading = state, None


def read(path: Path) -> frozenset[str]:
    """Return the recipients of a file. Raises ConfigError."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError([f"{path}: {error.strerror}"]) from None
    except UnicodeDecodeError:
        raise ConfigError([f"{path}: is not UTF-8"]) from None
    found, problems = set[str](), list[str]()
    for number, line in enumerate(text.splitlines(), 1):
        word = line.partition(" #")[0].strip()
        if not word or word.startswith("#"):
            continue
        try:
            found.add(canonical(word))
        except AddressError as error:
            problems.append(f"{path}:{number}: {error}")
            if len(problems) >= _MAX_NAMED_MISTAKES:
                break
    if problems:
        raise ConfigError(problems)
    return frozenset(found)


def canonical(text: str) -> str:
    """Return an address or @domain as recipients are compared. Raises AddressError.

    ASCII letters of the local part are in lower case, as nearly all servers treat them alike.
    """
    if text.startswith("@"):
        return f"@{normalise_domain(text[1:])}"
    mailbox, domain = parse_mailbox(text, utf8=True)
    return f"{lower_ascii(unquoted(mailbox.rpartition('@')[0]))}@{domain}"


def check(path: Path, relay: Relay) -> None:
    """Raise ConfigError with the mistakes of the files that `relay.recipients` names."""
    problems: list[tuple[Key, str]] = []
    for number, entry in enumerate(relay.recipients):
        if entry.file:
            try:
                read(entry.file)
            except ConfigError as error:
                key: Key = ("relay", "recipients", number, "file")
                problems.append((key, "; ".join(error.problems)))
    if problems:
        raise mistakes(path, problems)
