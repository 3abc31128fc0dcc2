"""The command of operators, in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from click.testing import CliRunner, Result

from queued.cli.queuectl import main

type Command = Callable[..., Result]
"""Takes the words of the command, and as `given` its standard input."""


def queuectl(config: Path, *words: str, given: str | bytes = "") -> Result:
    """Run a command with this configuration, in a thread beside a test that is a coroutine."""
    line = [*words, "-c", str(config)]
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return CliRunner().invoke(main, line, input=given)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(CliRunner().invoke, main, line, input=given).result()
