"""The option --version of all commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click


def version_option(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the option --version of the command `name`: the version of the installed pgmta."""
    return click.version_option(
        package_name="pgmta", prog_name=name, message="%(prog)s (pgmta) %(version)s"
    )
