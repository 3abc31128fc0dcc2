"""Why a campaign does not move, and which command lets it go on (pure)."""

from __future__ import annotations

import re
import shlex
from datetime import datetime, timedelta

from pgmta.command import instant
from pgmta_features.campaigns.campaign_table import CampaignState, Obstacles

_MAX_HOURS = 5  # of time zones
_COMMAND = re.compile(r"(?:: | \()`queuectl [^`]*`\)?")
_SOON = timedelta(seconds=2)  # a shorter distance of two mails is no obstacle


def reasons(state: CampaignState, obstacles: Obstacles, now: datetime) -> list[str]:
    """Return what a campaign waits for, a sentence each; none if it moves or is done."""
    found = _obstacles(state, obstacles, now)
    if obstacles.held:
        found.append(f"an operator: {held(state, obstacles.held)}")
    return found


def without_commands(found: list[str]) -> list[str]:
    """Return reasons for those who have no `queuectl`."""
    return [_COMMAND.sub("", each) for each in found]


def held(state: CampaignState, number: int) -> str:
    """Return how much mail of a campaign is on hold, and the command that lists it."""
    tenant = f" --tenant {shlex.quote(state.tenant)}" if state.tenant else ""
    chosen = f"--status hold --metadata {shlex.quote(f'campaign={state.name}')}{tenant}"
    return f"{number} of its mails on hold (`queuectl list {chosen}`)"


def _obstacles(state: CampaignState, obstacles: Obstacles, now: datetime) -> list[str]:
    name, command = shlex.quote(state.name), "queuectl campaign"
    if not state.jobs:
        if not state.recipients:
            return [f"recipients: `{command} import {name} FILE`"]
        return [f"its start: `{command} start {name}`"]
    if state.halted_at:
        return [f"its resumption, because it is halted: `{command} resume {name} --halted`"]
    found = []
    if obstacles.later > 0:
        found.append(f"a further start, for {obstacles.later} recipients that were imported later: "
                     f"`{command} start {name}`")  # fmt: skip
    rest = state.unsent - max(obstacles.later, 0)
    if rest > 0 and state.jobs.keys() <= {"STOPPED", "LOGGED"}:
        found.append(f"its resumption, because it was stopped before the other {rest}: "
                     f"`{command} resume {name}`")  # fmt: skip
    elif state.jobs.keys() & {"READY", "ENQUEUED", "SENDING", "SENT"}:
        found += _of_mail(state, obstacles, now)
    return found


def _of_mail(state: CampaignState, obstacles: Obstacles, now: datetime) -> list[str]:
    budget = f"credential:{state.credential}"
    found = []
    if not obstacles.worker:
        found.append("a worker: none that delivers runs (`queuectl workers`)")
    if obstacles.visible_at and obstacles.visible_at > now:
        found.append(f"its time, {instant(obstacles.visible_at)}")
    elif obstacles.first_part_keeps_back(now) or obstacles.hours:
        if obstacles.first_part_keeps_back(now):
            when, after = obstacles.rest_at, obstacles.rest_after
            goes = f"at {instant(when)}" if when else "after it"
            if after:
                goes += f", not before {instant(after)}, because of {obstacles.part_zone}"
            found.append(f"its first part: the rest goes {goes}")
        found += [f"its hours {hours}" for hours in obstacles.hours[:_MAX_HOURS]]
        if (more := len(obstacles.hours) - _MAX_HOURS) > 0:
            found.append(f"its hours in {more} more time zones, later")
    elif "READY" in state.jobs and obstacles.user_of_credential is not None:
        user = obstacles.user_of_credential
        other = f"campaign {user}" if user else "a campaign of another tenant"
        found.append(f"credential {state.credential}, until {other} has tried all its "
                     "mail or is stopped")  # fmt: skip
    elif obstacles.month_is_over:
        found.append(f"the next month: {budget} has no more (`queuectl budget set "
                     f"{budget} RATE --month-most NUMBER`)")  # fmt: skip
    elif obstacles.next_at and obstacles.next_at > now + _SOON:
        found.append(f"its rate: {budget} is free at {instant(obstacles.next_at)}")
    if obstacles.words:
        when = obstacles.next_attempt
        until = f"tried again at {instant(when)}" if when else "on hold"
        found.append(f"message {obstacles.message_id} to {obstacles.recipient}, {until}: "
                     f"{obstacles.words}")  # fmt: skip
    return found
