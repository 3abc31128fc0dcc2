"""The command of operators, in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from click.testing import CliRunner, Result

from queued.cli.queuectl import main

type Command = Callable[..., Result]
"""Takes the words of the command, and as `given` its standard input."""


def queuectl(config: Path, *words: str, given: str | bytes = "") -> Result:
    """Run a command with this configuration."""
    return CliRunner().invoke(main, [*words, "-c", str(config)], input=given)
