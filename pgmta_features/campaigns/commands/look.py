"""`queuectl campaign list | show | watch`: how far campaigns are."""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from pgmta.command import age, instant, print_json, print_line, print_table, redraw_line
from pgmta.errors import PgmtaError
from pgmta_features.campaigns.campaign_table import CampaignState
from pgmta_features.campaigns.commands.argument import about_campaign, campaign_table
from pgmta_features.campaigns.commands.hours import hours_text
from pgmta_features.campaigns.waits import reasons
from pgmta_features.rates.rate import rate_text
from queued.cli.options.queue_command import Column, Form, command, print_rows

_LOOK_INTERVAL_S = 1.0  # of `watch`
_LINE_INTERVAL_S = 10.0  # if there is no terminal
_BAR_CHARACTERS = 30
_MAX_LISTS = 10  # the last ones; all are in --json


@command(name="list", rows=True)
@click.option("--tenant", help="Campaigns of this tenant; default: all.")
async def list_campaigns(config: Path, tenant: str | None, *, form: Form) -> None:
    """List the campaigns, the newest first."""
    async with campaign_table(config) as table:
        states = await table.states(tenant)
    columns: dict[str, Column] = {
        "CAMPAIGN": lambda state: state.name, "TENANT": lambda state: state.tenant or "-",
        "STATUS": lambda state: state.status, "RECIPIENTS": lambda state: state.recipients,
        "SENT": lambda state: state.sent, "FAILED": lambda state: state.errored,
        "LEFT": lambda state: state.unsent + state.queued,
        "CREATED": lambda state: instant(state.created_at),
    }  # fmt: skip
    print_rows(states, columns, form, values=[asdict(state) for state in states])


@command(name="show", json=True)
@about_campaign
@click.option("--recipient", metavar="ADDRESS", help="Only this recipient, and its outcome.")
async def show_campaign(
    config: Path, name: str, tenant: str, recipient: str | None, *, as_json: bool
) -> None:
    """Show how many recipients of a campaign are in each state, and what it waits for."""
    async with campaign_table(config) as table:
        state, failures = await table.state_and_failures(tenant, name)
        if recipient is not None:
            _show_recipient(
                state, recipient, await table.recipient(state.id, recipient), as_json=as_json
            )
            return
        templates, lists = await table.templates(state.id), await table.lists(state.id)
        settings, obstacles = await table.settings(state.id), await table.obstacles(state.id)
        now = datetime.now(UTC)
        waits = reasons(state, obstacles, now)
    if as_json:
        print_json({**asdict(state), "settings": settings, "failures": failures,
                    "templates": templates, "lists": lists, "waits_for": waits})  # fmt: skip
        return
    rate = rate_text(state.rate) if state.rate else "no rate"
    status = state.status + (": done" if state.done and not state.unsent else "")
    rows: list[list[object]] = [
        ["status", status], ["credential", f"{state.credential}, {rate}"], *_settings(settings),
        ["recipients", state.recipients], ["unsent", state.unsent], ["queued", state.queued],
        ["sent", state.sent], ["errored", state.errored], ["invalid", state.invalid],
        ["unknown", state.unknown], ["bounced", state.bounced],
        ["unsubscribed", state.unsubscribed], ["complained", state.complained],
    ]  # fmt: skip
    rows += [["template", _template(row)] for row in templates]
    rows += [["list", _list(row)] for row in lists[-_MAX_LISTS:]]
    if state.halted_reason:
        rows.append(["halted", state.halted_reason])
    if state.wait and not state.done:
        kept = ", once it sends" if obstacles.keep_back(now) else ""
        rows.append(["estimated wait", age(state.wait) + kept])
    rows += [["waits for", reason] for reason in waits]
    print_table([f"campaign {name}", ""], [[word, str(value)] for word, value in rows])
    if failures:
        print_line("")
        print_table(
            ["FAILURES", "CLASS", "CODE", "NUMBER"],
            [[row["state"], row["class"] or "-", row["code"] or "-", str(row["number"])]
             for row in failures],
        )  # fmt: skip


def _settings(settings: dict[str, Any]) -> list[list[object]]:
    """Return lines of how a campaign was made; those that do nothing are left out."""
    begin, deadline, zone_column = (
        settings["visible_at"], settings["deadline"], settings["zone_column"]
    )  # fmt: skip
    hours = None
    if settings["opens"]:
        hours = hours_text(*(settings[word] for word in ("opens", "closes", "days", "zone")))
        hours += f", or as {zone_column} says" if zone_column else ""
    rows: list[list[object]] = [
        ["sender", settings["sender"] or "none"], ["scope", settings["scope"] or None],
        ["priority", settings["priority"]], ["at", begin and instant(begin)],
        ["deadline", deadline and instant(deadline)], ["hours", hours],
    ]  # fmt: skip
    return [row for row in rows if row[1] is not None]


def _template(row: dict[str, Any]) -> str:
    since = f", since {instant(row['at'])} by {row['by']}: {row['reason']}" if row["reason"] else ""
    return f"{row['template']} version {row['version']}{since}"


def _list(row: dict[str, Any]) -> str:
    return (f"{row['number']}: {row['name']}, recipients {row['first']} to {row['last']}, "
            f"{instant(row['at'])} by {row['by']}")  # fmt: skip


def _show_recipient(
    state: CampaignState, address: str, row: dict[str, Any] | None, *, as_json: bool
) -> None:
    if row is None:
        raise PgmtaError(f"{state.name} has no recipient {address}")
    if as_json:
        print_json(row)
        return
    rows = [[word, instant(row[word]) if word.endswith("_at") else str(row[word])]
            for word in row if row[word] not in (None, False)]  # fmt: skip
    print_table([f"campaign {state.name}", ""], [[word.replace("_", " "), at] for word, at in rows])
    if row["message_id"]:
        print_line(f"`queuectl explain {row['message_id']}` has its attempts")


@command()
@about_campaign
async def watch(config: Path, name: str, tenant: str) -> None:
    """Show the progress of a campaign until its jobs are done; Ctrl-C ends the look alone."""
    terminal, shown, begun = sys.stdout.isatty(), 0.0, time.monotonic()
    async with campaign_table(config) as table:
        state = await table.state(tenant, name)
        first = state.ended
        while True:
            now = time.monotonic()
            speed = (state.ended - first) / (now - begun) if now > begun else 0.0
            if terminal:
                redraw_line(bar_of(state, speed))
            elif now - shown >= _LINE_INTERVAL_S or state.done:
                print_line(bar_of(state, speed))
                shown = now
            if state.done or not state.jobs or state.halted_reason:
                break
            await asyncio.sleep(_LOOK_INTERVAL_S)
            state = await table.state(tenant, name)
        waits = reasons(state, await table.obstacles(state.id), datetime.now(UTC))
    if state.halted_reason:
        print_line(f"{name} is halted: {state.halted_reason}", err=True)
    for reason in waits:
        print_line(f"{name} waits for {reason}", err=True)


def bar_of(state: CampaignState, speed: float) -> str:
    """Return a line with a bar, the rate in mails per second, and the time that is left."""
    share = state.ended / state.recipients if state.recipients else 1.0
    filled = int(share * _BAR_CHARACTERS)
    left = state.unsent + state.queued
    seconds = state.wait if state.rate and not speed else left / speed if speed else None
    rest = ", waits" if seconds is None else f", {age(max(seconds, 1.0))} left"
    return (
        f"{state.name} [{'#' * filled}{'-' * (_BAR_CHARACTERS - filled)}] {share:4.0%} "
        f"{state.ended} of {state.recipients}, {speed:.0f}/s{rest if left else ''}; "
        f"sent {state.sent}, failed {state.errored}, unknown {state.unknown}"
    )
