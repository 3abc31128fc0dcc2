"""Errors of click in the spelling of all others: `error: ` and the reason, on stderr.

The module imports click, and little else, because `queuectl --help` waits for it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import click

from pgmta.console.journal import marked_words
from pgmta.errors import FeatureError


class ErrorLines(click.Command):
    """A command, or with click.Group a group, that writes `error: …` where click has `Error: …`."""

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """Run the command; end the process as click does, unless `standalone_mode` is off."""
        run: Callable[..., Any] = super().main
        if not standalone_mode:
            return run(*args, standalone_mode=False, **extra)
        try:
            code = run(*args, standalone_mode=False, **extra)
        except click.Abort:
            click.echo(marked_words("error: aborted"), err=True)
            sys.exit(1)
        except click.ClickException as error:
            if isinstance(error, click.exceptions.NoArgsIsHelpError):
                error.show()  # shows the help, which is no error
            else:
                _show(error)
            sys.exit(error.exit_code)
        except FeatureError as error:
            click.echo(marked_words(f"error: {error}"), err=True)
            sys.exit(1)
        sys.exit(code if isinstance(code, int) else 0)


def _show(error: click.ClickException) -> None:
    context = error.ctx if isinstance(error, click.UsageError) else None
    if context:
        click.echo(context.get_usage(), err=True)
        if context.command.get_help_option(context):
            option = context.help_option_names[-1]
            click.echo(f"Try '{context.command_path} {option}' for help.\n", err=True)
    click.echo(marked_words(f"error: {error.format_message()}"), err=True)


class ErrorLinesGroup(ErrorLines, click.Group):
    """The same for a group of commands."""
