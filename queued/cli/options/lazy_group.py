"""A group of commands whose modules are imported when a command is used."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from pgmta.console.error_lines import ErrorLinesGroup

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class LazyCommand(NamedTuple):
    """The path of a command, as `module:attribute`, and its line in the help of the group.

    Who takes one of the words in `also` for a command is told this one.
    """

    path: str
    line: str
    also: tuple[str, ...] = ()

    def load(self) -> click.Command:
        """Import the command.

        The garbage collector rests meanwhile, and skips the imported objects later, at the end of
        the process too. That takes a fifth off the time of a short command.
        """
        module, _, attribute = self.path.partition(":")
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
    """Imports a command when it is asked for; its help needs none of them.

    A command `list --count` is a form of `list` with options of its own: the flag chooses it.
    `lazy` returns the commands, and `tasks` the headings of the help, each with the names of its
    commands; the group asks for them when it runs.
    """

    def __init__(
        self,
        *args: Any,
        lazy: Callable[[], Mapping[str, LazyCommand]],
        tasks: Callable[[], Mapping[str, Sequence[str]]] = dict,
        **more: Any,
    ) -> None:
        super().__init__(*args, **more)
        self._lazy = lazy
        self._tasks = tasks

    @cached_property
    def lazy(self) -> Mapping[str, LazyCommand]:
        """The commands, and further forms of them. Raises FeatureError."""
        return self._lazy()

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in order."""
        return sorted({*super().list_commands(ctx), *self.lazy})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command; None if there is none of this name."""
        if not (found := self.lazy.get(cmd_name)):
            return super().get_command(ctx, cmd_name)
        command = found.load()
        known = {option for each in command.params for option in each.opts}
        for flag, other in self._forms(cmd_name).items():
            # only shown in the help, because `resolve_command` takes the flag
            if flag not in known:
                command.params.append(
                    click.Option([flag], is_flag=True, expose_value=False, help=other.line)
                )
        return command

    def _forms(self, name: str) -> dict[str, LazyCommand]:
        """Return the further forms of a command, by their flags."""
        begin = f"{name} "
        return {
            each.removeprefix(begin): other
            for each, other in self.lazy.items()
            if each.startswith(begin)
        }

    def form(self, words: Sequence[str]) -> str:
        """Return the further form of a command that words choose by its flag; '' for none."""
        options = words[: words.index("--")] if "--" in words else words
        flags = (flag for flag in self._forms(words[0]) if flag in options)
        return next((f"{words[0]} {flag}" for flag in flags), "")

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the completions; a further form is none, because its flag is an option."""
        found = super().shell_complete(ctx, incomplete)
        return [each for each in found if " " not in each.value]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command of the first word, or the form that a flag after it chooses.

        Raises NoSuchCommand with the nearest names.
        """
        if name := self.form(args):
            rest = args[1:]
            rest.remove(name.rpartition(" ")[2])
            return name, self.get_command(ctx, name), rest
        try:
            return super().resolve_command(ctx, args)
        except click.exceptions.NoSuchCommand as error:
            word = error.command_name
            names = [each for each in self.list_commands(ctx) if " " not in each]
            message = None
            if longer := self._ending_with(ctx, word):
                names = []
                choice = " or ".join(f"'{each}'" for each in longer)
                message = f"No such command '{word}'. Did you mean {choice}?"
            raise click.exceptions.NoSuchCommand(
                word, message, possibilities=names, ctx=ctx
            ) from None

    def _ending_with(self, ctx: click.Context, word: str) -> list[str]:
        """Return the commands of groups, and the further forms, that have this as last word."""
        forms = [
            name
            for name, each in self.lazy.items()
            if name.endswith(f" --{word}") or word in each.also
        ]
        groups = {each: self.get_command(ctx, each) for each in self.lazy if " " not in each}
        return sorted(forms) + [
            f"{name} {word}"
            for name, group in sorted(groups.items())
            if isinstance(group, click.Group) and group.get_command(ctx, word)
        ]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the names with their lines, by tasks."""
        others = {name: each.get_short_help_str(100) for name, each in self.commands.items()}
        lines = {name: each.line for name, each in self.lazy.items() if " " not in name} | others
        sections = {
            task: [(name, lines.pop(name)) for name in names if name in lines]
            for task, names in self._tasks().items()
        }
        for task, rows in [
            *sections.items(),
            ("More" if sections else "Commands", sorted(lines.items())),
        ]:
            if rows:
                with formatter.section(task):
                    formatter.write_dl(rows)
