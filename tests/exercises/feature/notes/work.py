"""What queued does for notes."""

from __future__ import annotations

import asyncio
from functools import partial

from queued.process.queued_process import QueuedProcess
from queued.upkeep.duty import Duty

from .config import Notes


async def _note(process: QueuedProcess, text: str) -> None:
    await process.link.run("INSERT INTO notes (text) VALUES (%(text)s)", {"text": text})


DUTY = Duty(
    "notes", 60.0, lambda process: partial(_note, process, process.config.section(Notes).text)
)


async def begin(process: QueuedProcess) -> None:
    """Note that the process has begun, and wait until it ends."""
    await _note(process, "begun")
    await asyncio.Event().wait()
