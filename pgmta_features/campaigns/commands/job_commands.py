"""`queuectl campaign start | stop | resume | retry | delete`, and the same for one job."""

from __future__ import annotations

import asyncio
import re
import shlex
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import click

from pgmta.command import instant, print_json, print_line
from pgmta.errors import ConfigError, PgmtaError
from pgmta_features.campaigns.campaign_table import CampaignTable
from pgmta_features.campaigns.commands.argument import about_campaign, campaign_table
from pgmta_features.campaigns.waits import held, reasons
from pgmta_features.rates.rate import rate_text, read_rate
from queued.cli.options.progress_bar import progress_bar
from queued.cli.options.queue_command import (
    Column,
    Form,
    command,
    print_rows,
    read_duration,
)  # fmt: skip

_LOOK_INTERVAL_S = 0.2
_PART = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s*(%?)", re.ASCII)


@command(json=True)
@about_campaign
@click.option("--rate", help="Mails per s, min, h or d, as 50/s; default: the rate of the "
              "credential, which may be any number.")  # fmt: skip
@click.option("--jobs", type=click.IntRange(1, 1000), default=1, show_default=True,
              help="Parts that stop and retry separately.")  # fmt: skip
@click.option("--first", metavar="SHARE", help="Send so many first, as 5% or 200; needs --wait.")
@click.option("--wait", metavar="TIME", help="Send the rest so long after these, as 1h.")
async def start(
    config: Path,
    name: str,
    tenant: str,
    rate: str | None,
    jobs: int,
    first: str | None,
    wait: str | None,
    *,
    as_json: bool,
) -> None:
    """Begin to send a campaign; the rate becomes that of its credential."""
    speed = read_rate(rate, "--rate") if rate else None
    part, pause = _part(first, wait)
    async with campaign_table(config) as table:
        before = await table.state(tenant, name)
        made = await table.start(before.id, speed, jobs, part, pause)
        after = await table.state(tenant, name)
        waits = reasons(after, await table.obstacles(after.id), datetime.now(UTC))
    if as_json:
        print_json({"jobs": made, "rate": after.rate, "rate_before": before.rate,
                    "waits_for": waits})  # fmt: skip
        return
    word = "job" if len(made) == 1 else "jobs"
    print_line(f"started {name}: {word} {', '.join(map(str, made))}")
    if after.rate and before.rate and after.rate != before.rate:
        print_line(f"credential {after.credential} has {rate_text(after.rate)} now, "
                   f"for all its campaigns; before {rate_text(before.rate)}")  # fmt: skip
    for reason in waits:
        print_line(f"{name} waits for {reason}")


def _part(first: str | None, wait: str | None) -> tuple[Decimal | None, float | None]:
    """Return the share or number that goes first, and the seconds until the rest follows."""
    if first is None and wait is None:
        return None, None
    if first is None or wait is None:
        raise ConfigError(["--first and --wait need each other: --first 5% --wait 1h"])
    pause = read_duration(wait, "--wait")
    if not (found := _PART.fullmatch(first.strip())):
        raise ConfigError([f"--first {first!r}: write a share or a number, as 5% or 200"])
    part = Decimal(found[1])
    if found[2]:
        part /= 100
    if part <= 0 or (found[2] and part >= 1) or (not found[2] and part % 1):
        raise ConfigError([f"--first {first!r}: it is neither a number, as 200, nor a share above "
                           "0% and below 100%"])  # fmt: skip
    return part, pause


@command()
@about_campaign
async def stop(config: Path, name: str, tenant: str) -> None:
    """Stop a campaign: no mail of it begins from now on."""
    async with campaign_table(config) as table:
        number = await table.stop(await table.find(tenant, name))
    print_line(f"stopped {_jobs(number)} of {name}{'' if number else ': none runs'}")


_HALTED = click.option(
    "--halted", is_flag=True, help="Go on, although bounces or failures have halted it."
)


@command()
@about_campaign
@_HALTED
async def resume(config: Path, name: str, tenant: str, *, halted: bool) -> None:
    """Go on with a campaign that was stopped, with exactly the rest."""
    async with campaign_table(config) as table:
        number = await table.resume(await table.find(tenant, name), halted=halted)
        state = await table.state(tenant, name)
    if not number and state.done:
        again = f"; `queuectl campaign retry {shlex.quote(name)}` sends what failed again"
        print_line(f"{name} is done: no recipient is unsent{again if state.errored else ''}")
        return
    print_line(f"resumed {_jobs(number)} of {name}{'' if number else ': none is stopped'}")


@command()
@about_campaign
@click.option("--unknown", is_flag=True, help="Also mail that may have arrived: maybe twice then.")
@_HALTED
async def retry(config: Path, name: str, tenant: str, *, unknown: bool, halted: bool) -> None:
    """Send again the failed recipients, and the rest, before younger campaigns.

    Those that are suppressed by now, as hard bounces are, get nothing: they become invalid.
    """
    async with campaign_table(config) as table:
        campaign = await table.find(tenant, name)
        suppressed = await table.suppressed(campaign=campaign, unknown=unknown)
        number = await table.retry(campaign, unknown=unknown, halted=halted)
        state = await table.state(tenant, name)
        on_hold = (await table.obstacles(campaign)).held
    if on_hold:
        print_line(f"not tried again: {held(state, on_hold)}")
    if not number and state.done:
        more = f"; --unknown takes those with an unknown outcome, {state.unknown}"
        print_line(f"{name} is done: none failed{more if state.unknown else ''}")
        return
    nothing = "" if number else ": none is done or stopped"
    print_line(f"{name}: {_jobs(number)} of it tried again{nothing}")
    _say_suppressed(suppressed)


@command(json=True)
@about_campaign
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--wait", is_flag=True, help="Stop it first, and wait for what is in flight.")
async def delete(
    config: Path, name: str, tenant: str, *, yes: bool, wait: bool, as_json: bool
) -> None:
    """Delete a campaign that is done, with its recipients and outcomes."""
    async with campaign_table(config) as table:
        campaign = await table.find(tenant, name)
        if not yes:
            click.confirm(f"Delete {name} and all that is known of its recipients?", abort=True,
                          err=as_json)  # fmt: skip
        if wait:
            await _stop_and_wait(table, tenant, name)
        state, on_hold = await table.state(tenant, name), (await table.obstacles(campaign)).held
        number = await table.delete(campaign)
    if on_hold:
        print_line(f"still in the queue: {held(state, on_hold)}", err=True)
    if as_json:
        print_json({"recipients": number})
    else:
        print_line(f"deleted {name} with {number} recipients")


async def _stop_and_wait(table: CampaignTable, tenant: str, name: str) -> None:
    """Stop a campaign, and wait until its jobs are done. Raises PgmtaError if none can end them."""
    state = await table.state(tenant, name)
    await table.stop(state.id)
    first = state.queued
    with progress_bar("ending", first, "mails") as bar:
        while (state := await table.state(tenant, name)).jobs and not state.done:
            if not (await table.obstacles(state.id)).worker:
                raise PgmtaError(f"{name} is stopped; no worker that delivers runs (`queuectl "
                                 "workers`), which takes its mail out of the queue")  # fmt: skip
            bar.show(max(first - state.queued, 0), max(first - state.queued, 0))
            await asyncio.sleep(_LOOK_INTERVAL_S)


@click.group()
def job() -> None:
    """List, stop, resume and retry parts of campaigns."""


@command(job, "list", rows=True)
@click.option("--campaign", help="Jobs of this campaign, also those that are done.")
@click.option("--tenant", default="", help="Tenant of the campaign.")
async def list_jobs(config: Path, campaign: str | None, tenant: str, *, form: Form) -> None:
    """List the jobs that are not done, in the order in which they go."""
    async with campaign_table(config) as table:
        rows = await table.jobs(await table.find(tenant, campaign) if campaign else None)
    columns: dict[str, Column] = {
        "JOB": "id", "CAMPAIGN": "name", "STATUS": "status", "FIRST": "first", "LAST": "last",
        "ZONE": lambda row: row["zone"] or "-",
        "FED TO": "fed_to", "SINCE": lambda row: instant(row["changed_at"]),
        "FED BY": lambda row: row["fed_by"] or "-",
    }  # fmt: skip
    print_rows(rows, columns, form)


@command(job, "stop")
@click.argument("number", type=int)
async def stop_job(config: Path, number: int) -> None:
    """Stop a job."""
    async with campaign_table(config) as table:
        _say(number, "stopped", changed=await table.stop_job(number))


@command(job, "resume")
@click.argument("number", type=int)
async def resume_job(config: Path, number: int) -> None:
    """Go on with a job, with exactly the rest."""
    async with campaign_table(config) as table:
        _say(number, "resumed", changed=await table.resume_job(number))


@command(job, "retry")
@click.argument("number", type=int)
@click.option("--unknown", is_flag=True, help="Also mail that may have arrived: maybe twice then.")
async def retry_job(config: Path, number: int, *, unknown: bool) -> None:
    """Send again what failed of a job, in its place."""
    async with campaign_table(config) as table:
        suppressed = await table.suppressed(job=number, unknown=unknown)
        _say(number, "tried again", changed=await table.retry_job(number, unknown=unknown))
    _say_suppressed(suppressed)


def _say(number: int, done: str, *, changed: bool) -> None:
    print_line(f"job {number} {done}" if changed else f"job {number}: nothing to do")


def _say_suppressed(number: int) -> None:
    if number:
        print_line(f"{number} of the recipients are suppressed, as hard bounces are: they become "
                   "invalid, and get nothing (`queuectl suppression list`)")  # fmt: skip


def _jobs(number: int) -> str:
    return "1 job" if number == 1 else f"{number} jobs"
