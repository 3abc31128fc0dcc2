"""The command of the daemon: `python -m tests.exercises.daemon URI HOST FOLDER`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from pgmta.service import Signals
from tests.exercises.daemon.collector import run


async def main() -> None:
    """Collect until SIGTERM."""
    uri, host, folder = sys.argv[1:]
    await run(uri, host, Path(folder), Signals())


asyncio.run(main())
