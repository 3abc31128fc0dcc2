"""`queuectl suspend`, `suspend --list` and `suspend --end`: mail that waits without a hold."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click

from pgmta.command import instant, print_line, shorten
from pgmta.config.types import hint
from pgmta.errors import ConfigError, PgmtaError
from pgmta.postgres.operator import connected
from pgmta.selection import domain_as_stored
from pgmta_features.suspensions.orders import SuspensionOrders
from queued.cli.options.filter_options import condition, mail_options
from queued.cli.options.queue_command import (
    SET_ASIDE_TEXT,
    Column,
    Cut,
    Form,
    age_of,
    command,
    database_of,
    print_rows,
    read_duration,
    read_time,
    who,
)

_MAIL_FILTERS = ("domain", "sender", "recipient", "tenant", "metadata", "priority")
_KEY_FILTERS = ("domain", "sender", "tenant")  # one of these alone is the key of a suspension


@command()
@click.option("--mx", metavar="HOST", help="MX host of a domain; *.NAME is every host of NAME.")
@click.option("--next-hop", metavar="HOST", help="Host of a route, or a domain without a route.")
@click.option("--sender-domain", metavar="DOMAIN", help="Domain of the sender.")
@mail_options
@click.option("--where", metavar="SQL", help="Condition on columns of queue.")
@click.option("--reason", required=True, help="Why, for other operators.")
@click.option("--tag", default="", help="A name by which `suspend --end --tag` ends several.")
@click.option("--for", "length", metavar="DURATION", help="End by itself after this time.")
@click.option("--until", metavar="TIME", help="End by itself then: '2026-12-24 18:00'.")
async def suspend(
    config: Path,
    mx: str | None,
    next_hop: str | None,
    sender_domain: str | None,
    where: str | None,
    reason: str,
    tag: str,
    length: str | None,
    until: str | None,
    **mail: Any,
) -> None:
    """Stop attempts for mail until `queuectl suspend --end`, or for a time.

    Nothing goes on hold.

    Attempts stop within a second, also of mail that comes later. Such mail expires, meets its
    deadline and gets delay notices as before. An attempt under way goes on. Mail for an MX host
    stops when its host is known: at once for domains that went there within a day.
    """
    ends = _end(length, until)
    uri = database_of(config)
    named = {"mx": mx, "next-hop": next_hop, "sender-domain": sender_domain}
    kind, value = await _key(uri, named, mail, where)
    async with connected(uri) as db:
        orders = SuspensionOrders(db)
        number = await orders.suspend(kind, value, reason, ends, tag, who())
    print_line(f"suspension {number}: {kind} {' '.join(value.split())}")
    by_time = f"at {instant(ends)}, or " if ends else ""
    print_line(f"its mail waits from now on; it ends {by_time}by `queuectl suspend --end {number}`")


async def _key(
    uri: str, named: dict[str, str | None], mail: dict[str, Any], where: str | None
) -> tuple[str, str]:
    """Return kind and value of the suspension. Raises ConfigError."""
    given = {kind: value for kind, value in named.items() if value is not None}
    filters = [name for name in _MAIL_FILTERS if mail.get(name)]
    if given and (len(given) > 1 or filters or where):
        kind = next(iter(given))
        raise ConfigError([f"--{kind} stands alone: a condition on more is --where"])
    if given:
        ((kind, value),) = given.items()
        return kind, value.strip().lower().rstrip(".")
    if not filters and not where:
        raise ConfigError(["a suspension needs a key: --domain, --mx, --next-hop, --sender,"
                           " --sender-domain, --tenant or --where"])  # fmt: skip
    if not where and len(filters) == 1 and filters[0] in _KEY_FILTERS:
        ((first, *more), name) = mail[filters[0]], filters[0]
        if not more and "*" not in first:
            return name, domain_as_stored(first) if name == "domain" else first.strip()
    found = await condition(uri, {**mail, "where": where})
    assert found  # noqa: S101 - some filter is given
    return "condition", found


def _end(length: str | None, until: str | None) -> datetime | None:
    if length and until:
        raise ConfigError(["--for and --until exclude each other"])
    if length:
        return datetime.now(UTC) + timedelta(seconds=read_duration(length, "--for"))
    end = read_time(until, "--until", whole_days=True)
    if end and end <= datetime.now(UTC):
        raise ConfigError([f"--until {until!r}: that is in the past"])
    return end


@command(name="suspend --end")
@click.argument("numbers", metavar="[ID]...", type=int, nargs=-1)
@click.option("--tag", help="All suspensions with this tag.")
@click.option("--all", "everything", is_flag=True, help="All suspensions.")
async def end(config: Path, numbers: tuple[int, ...], tag: str | None, everything: bool) -> None:
    """End suspensions: their mail becomes due within a minute, unless it meets another one."""
    if bool(numbers) + bool(tag) + everything != 1:
        raise ConfigError(["name suspensions by ID, by --tag or by --all"])
    async with connected(database_of(config)) as db:
        orders = SuspensionOrders(db)
        known = {each["id"]: each for each in await orders.suspensions()}
        chosen = list(numbers) or [
            number for number, each in known.items() if everything or each["tag"] == tag
        ]
        if unknown := [number for number in chosen if number not in known]:
            raise PgmtaError(
                f"there is no suspension {unknown[0]}; `queuectl suspend --list` has all"
            )
        if not chosen:
            tags = sorted({str(each["tag"]) for each in known.values() if each["tag"]})
            near = f"; {hint(tag, tags)}" if tag and tags else ""
            raise PgmtaError(f"there is no such suspension{near}")
        for number in chosen:
            if await orders.resume(number, who()):
                each = known[number]
                key = f"{each['kind']} {shorten(each['value'], 60)}"
                print_line(f"suspension {number} is over ({key}); {each['rows']} rows become due")


@command(name="suspend --list", rows=True)
async def suspensions(config: Path, form: Form) -> None:
    """List the suspensions, with the rows that came due and were put off for each.

    Rows whose next attempt is to come count from then on. A plus says that rows are still put off.
    """
    async with connected(database_of(config)) as db:
        orders = SuspensionOrders(db)
        found = await orders.suspensions()
        leaving = await orders.leaving()
    for each in found:
        if each["slow_at"]:
            print_line(f"warning: suspension {each['id']} {SET_ASIDE_TEXT}: end it", err=True)
    columns: dict[str, Column] = {
        "ID": "id",
        "BY": "kind",
        "VALUE": lambda each: " ".join(each["value"].split()),
        "PUT OFF": lambda each: f"{each['rows']}{'' if each['applied'] else '+'}",
        "AGE": lambda each: age_of(each["created_at"]),
        "UNTIL": lambda each: instant(each["until"]) if each["until"] else "-",
        "WHO": "created_by",
        "TAG": lambda each: each["tag"] or "-",
        "REASON": Cut("reason", 40),
    }
    print_rows(found, columns, form)
    if leaving and not form.for_machines:
        print_line(f"{leaving} rows of suspensions that are over become due")
