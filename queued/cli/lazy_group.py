"""A group of commands whose modules are imported when a command is used."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

import click

from pgmta.console.error_lines import ErrorLinesGroup


class LazyCommand(NamedTuple):
    """The place of a command, as `module:attribute`, and its line in the help of the group."""

    place: str
    line: str

    def load(self) -> click.Command:
        """Import the command.

        The garbage collector rests meanwhile, and skips the imported objects later, at the end of
        the process too. That takes a fifth off the time of a short command.
        """
        module, _, attribute = self.place.partition(":")
        if module not in sys.modules:
            gc.disable()
            try:
                importlib.import_module(module)
            finally:
                gc.freeze()
                gc.enable()
        found = getattr(sys.modules[module], attribute)
        assert isinstance(found, click.Command)  # noqa: S101 - for the type checker
        return found


class LazyGroup(ErrorLinesGroup):
    """Imports a command when it is asked for; its help needs none of them."""

    def __init__(self, *args: Any, lazy: Mapping[str, LazyCommand], **more: Any) -> None:
        super().__init__(*args, **more)
        self.lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in order."""
        return sorted({*super().list_commands(ctx), *self.lazy})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command; None if there is none of this name."""
        if found := self.lazy.get(cmd_name):
            return found.load()
        return super().get_command(ctx, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command of the first word. Raises NoSuchCommand with the nearest names."""
        try:
            return super().resolve_command(ctx, args)
        except click.exceptions.NoSuchCommand as error:
            names = self.list_commands(ctx)
            raise click.exceptions.NoSuchCommand(
                error.command_name, possibilities=names, ctx=ctx
            ) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the names with their lines."""
        others = {name: each.get_short_help_str(100) for name, each in self.commands.items()}
        lines = {name: each.line for name, each in self.lazy.items()} | others
        with formatter.section("Commands"):
            formatter.write_dl(sorted(lines.items()))
