"""`queuectl rule`: standing rules, which also hold rows that come later."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from pgmta.action import Action
from pgmta.command import print_line
from pgmta.config.types import hint
from pgmta.errors import ConfigError, PgmtaError
from pgmta.postgres.operator import connected
from pgmta.store.changes.overview import Overview
from pgmta.store.changes.row_change import RowChange
from pgmta.store.queue.conditions import check_conditions, release_hint, rule_holds
from queued.cli.commands.change import (
    EXIT_INTERRUPTED,
    RELEASE_AFTER,
    apply_change,
    held_again,
    seconds,
)
from queued.cli.options.filter_options import condition, filter_options
from queued.cli.options.queue_command import (
    SET_ASIDE_TEXT,
    Column,
    Cut,
    Form,
    age_of,
    command,
    database_of,
    print_rows,
    time_to,
    who,
)

_TRIAL_S = 5.0  # in which a new rule is tried on the rows of the queue


@click.group()
def rule() -> None:
    """Hold mail by standing rules, also mail that comes later."""


@command(rule, "list", rows=True)
async def list_rules(config: Path, form: Form) -> None:
    """List the standing rules, also those of workers."""
    async with connected(database_of(config)) as db:
        overview = Overview(db)
        rules = await overview.rules()
        counting = [rule for rule in rules if rule["slow_at"] is None]
        refused = await overview.refused(
            {f"rule {each['name']}": each["condition"] for each in counting}
        )
    for fault in refused:
        print_line(f"warning: {fault}", err=True)
    for each in rules:
        if each["slow_at"]:
            print_line(
                f"warning: rule {each['name']} {SET_ASIDE_TEXT}: add it with another one", err=True
            )
    columns: dict[str, Column] = {
        "RULE": "name",
        "ACTION": "action",
        "BY": "created_by",
        "AGE": lambda rule: age_of(rule["created_at"]),
        "ENDS IN": lambda rule: time_to(rule["expires_at"]) if rule["expires_at"] else "-",
        "HOLDS": "held",
        "REASON": Cut("reason", 30),
        # never cut, because rules often begin alike
        "WHERE": lambda rule: " ".join(rule["condition"].split()),
    }
    print_rows(rules, columns, form)


@command(rule, "add")
@click.argument("name")
@filter_options
@click.option("--quarantine", help="Put matching rows into this quarantine.")
@click.option("--reason", required=True, help="Why. The held rows keep it.")
@click.option(
    "--expire",
    metavar="DURATION",
    help="End the rule after this time. Rows that it holds stay on hold.",
)
@RELEASE_AFTER
@click.option(
    "--force", is_flag=True, help="Add it even if its condition fails on rows; it holds these."
)
async def add_rule(
    config: Path,
    name: str,
    quarantine: str | None,
    reason: str,
    expire: str | None,
    release_after: str | None,
    force: bool,
    **filters: object,
) -> None:
    """Make a standing rule NAME for rows that the conditions match.

    The command tries the rule on the rows that wait, for at most 5 seconds. It refuses a rule whose
    condition fails on a row, for example by a cast of metadata.
    """
    uri = database_of(config)
    chosen = await condition(uri, filters)
    if chosen is None:
        raise ConfigError(["a standing rule needs a condition"])
    await check_conditions(uri, {"rule": chosen}, {"rule"})
    values = {
        "name": name,
        "action": Action.QUARANTINE if quarantine else Action.HOLD,
        "condition": chosen,
        "reason": reason,
        "quarantine": quarantine,
        "release_after": seconds(release_after),
        "expire": seconds(expire, "--expire"),
    }
    async with connected(uri) as db:
        overview = Overview(db)
        await _try(overview, name, chosen, force=force)
        await overview.add_rule(values, who())
    print_line(f"rule {name} holds what matches from now on")
    if expire:
        print_line(f"it ends in {expire}; rows that it holds then stay on hold")
    if release_after:
        print_line(f"each row is released {release_after} after its hold, and not held by it again")


async def _try(overview: Overview, name: str, chosen: str, *, force: bool) -> None:
    fault, tried, whole = await overview.failing(f"rule {name}", chosen, _TRIAL_S)
    if not whole:
        print_line(f"warning: tried on {tried} rows in {_TRIAL_S:.0f} s, not on all", err=True)
    if fault and not force:
        raise PgmtaError(
            f"{fault}; of {tried} rows tried. The rule would hold what it fails on."
            " Make the condition test the value first (CASE WHEN … ~ '^[0-9]{1,9}$' THEN …),"
            " or say --force"
        )
    if fault:
        print_line(f"warning: {fault}; the rule holds what it fails on", err=True)


@command(rule, "remove")
@click.argument("name")
@click.option("--release", is_flag=True, help="Also release the rows that it holds.")
async def remove_rule(config: Path, name: str, release: bool) -> None:
    """Remove the standing rule NAME. Rows that it holds stay on hold, if not --release."""
    uri = database_of(config)
    async with connected(uri) as db:
        overview = Overview(db)
        removed = await overview.remove_rule(name, who())
        others = [] if removed else [str(each["name"]) for each in await overview.rules()]
    if not removed:
        near = f"; {hint(name, others)}" if others else ""
        raise PgmtaError(f"there is no rule {name!r}{near}")
    number, held = removed
    print_line(f"rule {name} is removed")
    if not held:
        return
    if not release:
        print_line(f"{held} rows that it held stay on hold: {release_hint(number)}")
        return
    where = rule_holds(number)
    await held_again(uri, where)
    done, stopped = await apply_change(uri, RowChange(Action.RELEASE, where, who()), held)
    rest = f"; stopped, the others stay: {release_hint(number)}" if stopped else ""
    print_line(f"{done} of {held} rows that it held are released{rest}")
    if stopped:
        sys.exit(EXIT_INTERRUPTED)
