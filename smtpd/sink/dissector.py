"""Has each mail taken apart in a separate process, which hostile mail may break."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

_MAX_PROCESSES = 2  # that take mails apart at the same time
_TIMEOUT_S = 20.0  # the process itself has 5 s of CPU
_KEPT_MAILS = 16  # in memory


class AttachedPart(NamedTuple):
    """A part of a mail that is no text of it. `size` is in octets."""

    number: int
    name: str
    kind: str
    size: int


class Dissection(NamedTuple):
    """A mail in its parts.

    `text` has pairs of text and its URL, which may be empty; `html` is for the frame alone. Both
    are None if the mail has none. `cut` says that the mail has more octets than are read.
    """

    fields: list[tuple[str, str]]
    text: list[tuple[str, str]] | None
    html: str | None
    links: list[str]
    attachments: list[AttachedPart]
    cut: bool

    def field(self, name: str) -> str:
        """Return the first field of a name, or an empty text."""
        return next((value for each, value in self.fields if each.lower() == name.lower()), "")


class Undissectable(Exception):
    """The mail breaks Python's parser, or needs more time or memory than it gets."""


class Dissector:
    """Remembers the last mails, because the page and its frame ask for the same one."""

    def __init__(self) -> None:
        self._slots = asyncio.Semaphore(_MAX_PROCESSES)
        self._known: OrderedDict[str, Dissection] = OrderedDict()

    async def dissect(self, path: Path) -> Dissection:
        """Take a mail apart. Raises Undissectable."""
        if not (found := self._known.get(path.name)):
            found = _read(json.loads(await self._run(path)))
            self._known[path.name] = found
            if len(self._known) > _KEPT_MAILS:
                self._known.popitem(last=False)
        return found

    async def attachment(self, path: Path, number: int) -> bytes:
        """Return the content of an attachment. Raises Undissectable."""
        return await self._run(path, str(number))

    async def _run(self, path: Path, *more: str) -> bytes:
        async with self._slots:
            child = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", "smtpd.sink.dissection", str(path), *more,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )  # fmt: skip
            try:
                async with asyncio.timeout(_TIMEOUT_S):
                    said, _ = await child.communicate()
            except TimeoutError:
                raise Undissectable from None
            finally:
                if child.returncode is None:
                    child.kill()
                    await child.wait()
            if child.returncode:
                raise Undissectable
            return said


def _read(found: dict[str, Any]) -> Dissection:
    pairs = {
        name: found[name] and [(one, two) for one, two in found[name]]
        for name in ("fields", "text")
    }
    attachments = [AttachedPart(**each) for each in found["attachments"]]
    return Dissection(**{**found, **pairs, "attachments": attachments})
