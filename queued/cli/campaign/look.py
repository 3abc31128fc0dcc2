"""`queuectl campaign list | show | watch`: how far campaigns are."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from pathlib import Path

import click

from pgmta.command import age, print_json, print_line, print_table, redraw_line
from pgmta.store.campaigns.campaigns import CampaignState
from queued.cli.campaign.campaign_argument import about_campaign, campaign_table
from queued.cli.options.queue_command import Column, command, instant, print_rows

_EVERY = 1.0  # seconds between two looks of `watch`
_LINES = 10.0  # seconds between two lines, if there is no terminal
_BAR = 30  # characters


@command(name="list", json=True)
@click.option("--tenant", help="Campaigns of this tenant; default: all.")
def list_campaigns(config: Path, tenant: str | None, *, as_json: bool) -> None:
    """List the campaigns, the newest first."""
    with campaign_table(config) as table:
        states = table.states(tenant)
    if as_json:
        print_json([asdict(state) for state in states])
        return
    columns: dict[str, Column] = {
        "CAMPAIGN": lambda state: state.name, "TENANT": lambda state: state.tenant or "-",
        "STATUS": status_of, "RECIPIENTS": lambda state: state.recipients,
        "SENT": lambda state: state.sent, "FAILED": lambda state: state.errored,
        "LEFT": lambda state: state.unsent + state.queued,
        "CREATED": lambda state: instant(state.created_at),
    }  # fmt: skip
    print_rows(states, columns)


@command(name="show", json=True)
@about_campaign
def show_campaign(config: Path, name: str, tenant: str, *, as_json: bool) -> None:
    """Show how many recipients of a campaign are in each state."""
    with campaign_table(config) as table:
        state = table.state(tenant, name)
    if as_json:
        print_json(asdict(state))
        return
    rate = f"{state.rate:g}/s" if state.rate else "any number"
    rows: list[list[object]] = [
        ["status", status_of(state)], ["credential", f"{state.credential}, {rate}"],
        ["recipients", state.recipients], ["unsent", state.unsent], ["queued", state.queued],
        ["sent", state.sent], ["errored", state.errored], ["invalid", state.invalid],
        ["unknown", state.unknown], ["bounced", state.bounced],
    ]  # fmt: skip
    if state.halted_reason:
        rows.append(["halted", state.halted_reason])
    if state.wait and not state.done:
        rows.append(["estimated wait", age(state.wait)])
    print_table([f"campaign {name}", ""], [[word, str(value)] for word, value in rows])


@command()
@about_campaign
def watch(config: Path, name: str, tenant: str) -> None:
    """Show the progress of a campaign until its jobs are done; Ctrl-C ends the look alone."""
    terminal, shown, begun = sys.stdout.isatty(), 0.0, time.monotonic()
    with campaign_table(config) as table:
        state = table.state(tenant, name)
        first = state.ended
        while True:
            now = time.monotonic()
            speed = (state.ended - first) / (now - begun) if now > begun else 0.0
            if terminal:
                redraw_line(bar_of(state, speed))
            elif now - shown >= _LINES or state.done:
                print_line(bar_of(state, speed))
                shown = now
            if state.done or not state.jobs or state.halted_reason:
                break
            time.sleep(_EVERY)
            state = table.state(tenant, name)
    if terminal:
        print_line("")
    if state.halted_reason:
        print_line(f"{name} is halted: {state.halted_reason}", err=True)


def bar_of(state: CampaignState, speed: float) -> str:
    """Return a line with a bar, the rate in mails per second, and the time that is left."""
    share = state.ended / state.recipients if state.recipients else 1.0
    filled = int(share * _BAR)
    left = state.unsent + state.queued
    seconds = state.wait if state.rate and not speed else left / speed if speed else None
    rest = ", waits" if seconds is None else f", {age(max(seconds, 1.0))} left"
    return (
        f"{state.name} [{'#' * filled}{'-' * (_BAR - filled)}] {share:4.0%} "
        f"{state.ended} of {state.recipients}, {speed:.0f}/s{rest if left else ''}; "
        f"sent {state.sent}, failed {state.errored}, unknown {state.unknown}"
    )


def status_of(state: CampaignState) -> str:
    """Return the statuses of its jobs in a word or two."""
    if state.halted_at:
        return "halted"
    if not state.jobs:
        return "not started"
    if len(state.jobs) == 1:
        return next(iter(state.jobs))
    return ", ".join(f"{number} {status}" for status, number in sorted(state.jobs.items()))
