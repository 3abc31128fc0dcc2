"""`queuectl rule`: standing rules, which hold also what comes later."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import click

from queued.cli.filters import condition, filter_options
from queued.cli.steer import seconds, who
from queued.cli.target import database_of
from queued.command import (
    age,
    config_option,
    json_option,
    print_json,
    print_line,
    print_table,
    reporting,
    shorten,
)
from queued.errors import ConfigError, PosternError
from queued.store.conditions import check_conditions
from queued.store.overview import Overview

_DEFAULT = "etc/queued.yaml"


def _overview(config: Path) -> Overview:
    return Overview(database_of(config))


@click.group()
def rule() -> None:
    """Hold mail by standing rules, also what comes later."""


@rule.command("list")
@config_option(_DEFAULT)
@json_option
@reporting
def list_rules(config: Path, as_json: bool) -> None:
    """List the standing rules, those of workers included."""
    overview = _overview(config)
    rules = overview.rules()
    overview.close()
    if as_json:
        print_json(rules)
        return
    now = datetime.now(UTC)
    print_table(
        ["RULE", "ACTION", "BY", "AGE", "ENDS IN", "REASON", "WHERE"],
        [
            [
                r["name"],
                r["action"],
                r["created_by"],
                age((now - r["created_at"]).total_seconds()),
                age((r["expires_at"] - now).total_seconds()) if r["expires_at"] else "-",
                shorten(r["reason"], 30),
                shorten(" ".join(r["condition"].split())),
            ]
            for r in rules
        ],
    )


@rule.command("add")
@config_option(_DEFAULT)
@click.argument("name")
@filter_options
@click.option("--quarantine", help="Put what matches into this quarantine.")
@click.option("--reason", required=True, help="Why; stays with the held rows.")
@click.option("--expire", metavar="DURATION", help="The rule ends after this time.")
@click.option("--release", "hold", metavar="DURATION", help="Each hold releases itself after this.")
@reporting
def add_rule(
    config: Path,
    name: str,
    quarantine: str | None,
    reason: str,
    expire: str | None,
    hold: str | None,
    **filters: object,
) -> None:
    """Make a standing rule NAME for rows that the conditions match."""
    uri = database_of(config)
    chosen = condition(uri, filters)
    if chosen is None:
        raise ConfigError(["a standing rule needs a condition"])
    asyncio.run(check_conditions(uri, {"rule": chosen}))
    overview = Overview(uri)
    overview.add_rule(
        {
            "name": name,
            "action": "quarantine" if quarantine else "hold",
            "condition": chosen,
            "reason": reason,
            "quarantine": quarantine,
            "hold": seconds(hold, "--release"),
            "expire": seconds(expire, "--expire"),
        },
        who(),
    )
    overview.close()
    print_line(f"rule {name} holds what matches from now on")


@rule.command("remove")
@config_option(_DEFAULT)
@click.argument("name")
@reporting
def remove_rule(config: Path, name: str) -> None:
    """Remove the standing rule NAME; what it has held stays on hold."""
    overview = _overview(config)
    known = overview.remove_rule(name, who())
    overview.close()
    if not known:
        raise PosternError(f"there is no rule {name!r}")
    print_line(f"rule {name} is removed")
