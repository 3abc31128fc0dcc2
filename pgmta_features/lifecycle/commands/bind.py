"""`queuectl lifecycle bind`, `unbind` and `check`: accounts of an application's own table."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from pgmta.command import EXIT_FAILURE, print_json, print_line, print_text
from pgmta_features.lifecycle.binding.bound import bind, unbind
from pgmta_features.lifecycle.binding.choice import Wish
from pgmta_features.lifecycle.binding.proof import prove
from queued.cli.options.queue_command import command, database_of, parse_pairs


def _names(text: str | None) -> list[str]:
    return [name.strip() for name in (text or "").split(",") if name.strip()]


@command(None, "bind", json=True)
@click.argument("table")
@click.option("--id", metavar="COLUMN", help="The id; default: the primary key.")
@click.option("--email", metavar="COLUMN", help="The address; default: email.")
@click.option(
    "--login", metavar="COLUMN",
    help="The login; default: username, login or name, else the address.",
)  # fmt: skip
@click.option("--status", metavar="COLUMN", help="The status as a word.")
@click.option(
    "--status-words", metavar="WORD=STATUS,…",
    help="What its words mean: provisioned, active or suspended, as any other word.",
)  # fmt: skip
@click.option("--active", metavar="COLUMN", help="A boolean: whether the account is active.")
@click.option(
    "--confirmed", metavar="COLUMN", help="A boolean or a time: whether its owner confirmed it."
)
@click.option(
    "--blocked", metavar="COLUMN", help="A boolean or a time beside it: whether it is suspended."
)
@click.option("--language", metavar="COLUMN", help="The language of its mail, such as de.")
@click.option("--words", metavar="COLUMN,…", help="Columns that are words of its mail.")
@click.option("--create", is_flag=True, help="Run the statements.")
def bind_table(
    table: str, id: str | None, email: str | None, login: str | None, status: str | None,
    status_words: str | None, active: str | None, confirmed: str | None, blocked: str | None,
    language: str | None, words: str | None, create: bool, config: Path, as_json: bool,
) -> None:  # fmt: skip
    """Take the accounts from a table of the application; print what `--create` runs.

    Name one of --status, --active and --confirmed. The statements make a view, functions and
    triggers beside the table, as its owner, and change functions of schema lifecycle, as the owner
    of that. The table that is bound may be bound again with other columns.
    """
    pairs = parse_pairs(_names(status_words), "--status-words")
    wish = Wish(
        table, id, email, login, status, pairs, active, confirmed, blocked, language, _names(words)
    )
    made = bind(database_of(config), wish, create=create)
    if as_json:
        print_json({
            "table": made.choice.table.sql, "bound": create, "statements": made.statements,
            "advice": made.advice,
        })  # fmt: skip
        return
    if create:
        print_line(f"bound {made.choice.table.sql}; `queuectl lifecycle check` proves it")
    else:
        print_text(made.statements)
    for statement in made.advice:
        print_line(f"{'' if create else '-- '}an index helps: {statement}")


@command(None, "unbind", json=True)
def unbind_table(config: Path, as_json: bool) -> None:
    """Take the binding away with all that it made, and end the tokens of its accounts."""
    table, ended = unbind(database_of(config))
    if as_json:
        print_json({"table": table, "ended": ended})
    else:
        print_line(f"{table} is no longer bound; {ended} tokens ended")


@command(None, "check", json=True)
@click.option(
    "--set", "values", multiple=True, metavar="COLUMN=VALUE",
    help="Another value for a column of the account.",
)  # fmt: skip
def check_table(values: tuple[str, ...], config: Path, as_json: bool) -> None:
    """Prove a bound table by the life of an account, which is rolled back."""
    steps = []
    for step in prove(database_of(config), parse_pairs(values, "--set", "COLUMN=VALUE")):
        steps.append(step)
        if not as_json:
            print_line(f"{'ok' if step.fault is None else 'no':3}{step.name}")
            if step.fault:
                print_text(f"   {step.fault}", err=True)
    good = all(step.fault is None for step in steps)
    if as_json:
        print_json({"ok": good, "steps": [step._asdict() for step in steps]})
    if not good:
        sys.exit(EXIT_FAILURE)
