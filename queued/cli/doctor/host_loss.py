"""What the loss of the database's host would lose now, in one sentence."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from queued.cli.doctor.diagnosis import Diagnosis, error, unknown, warning

_CHECK = "loss of a host"
_NUMBER = re.compile(r"\s*(?:(?:FIRST|ANY)\s+)?(\d+)\s*\(", re.IGNORECASE)
_CANDIDATES = ("sync", "quorum")  # their confirmation counts now
_NO_STANDBY = "would lose the queue, unless a backup has it: no standby is connected"


@dataclass(frozen=True, slots=True)
class StandbyState:
    """A server that receives WAL: its name, its sync_state, and the octets that it lacks.

    `confirms` is '' and `octets` None if the login may not see them. A logical one has some tables
    and is no copy of the server.
    """

    name: str
    confirms: str
    octets: int | None = None
    logical: bool = False


@dataclass(frozen=True, slots=True)
class Copies:
    """What decides which copies of the queue there are; settings have PostgreSQL's values."""

    names: str = ""
    commit: str = "on"
    standbys: Sequence[StandbyState] = ()
    absent: Sequence[str] = ()
    """Physical slots without a reader: standbys that should be there."""
    embedded: bool = False
    hosts: int = 1
    """How many hosts the URI names: the primary, and standbys that should be there."""
    blind: str = ""
    """The login, if it does not see the states of standbys."""

    @property
    def number(self) -> int:
        """How many standbys confirm a commit before it is answered."""
        found = _NUMBER.match(self.names)
        return int(found[1]) if found else int(bool(self.names.strip()))

    @property
    def confirming(self) -> list[StandbyState]:
        """The standbys whose confirmation counts now."""
        return [each for each in self.standbys if each.confirms in _CANDIDATES]

    @property
    def physical(self) -> list[StandbyState]:
        """The standbys that are copies."""
        return [each for each in self.standbys if not each.logical]

    @property
    def missing(self) -> str:
        """What says that a standby is missing; '': nothing does."""
        if self.absent:
            return f"the slot {self.absent[0]} waits for one"
        if len(self.physical) < self.hosts - 1:
            return f"environment.database.uri names {self.hosts} hosts"
        return ""


def judge(copies: Copies) -> Diagnosis:
    """Return what a loss would lose, and a remedy if that is not what the settings promise."""
    if copies.embedded:
        return _fine("would lose the queue, unless a backup has it: PostgreSQL is embedded")
    if copies.standbys and copies.blind:
        return unknown(
            _CHECK,
            "standbys are connected, and this login does not see which of them confirm commits",
            f"a superuser runs `GRANT pg_monitor TO {copies.blind};`",
        )
    if not copies.number:
        return _without_names(copies)
    if copies.commit in ("off", "local"):
        return warning(
            _CHECK,
            _sentence(f"{_last_moments(copies)}; synchronous_commit is {copies.commit}"),
            "ALTER SYSTEM RESET synchronous_commit; SELECT pg_reload_conf();",
        )
    missing = copies.number - len(copies.confirming)
    if missing > 0:
        there = ", ".join(each.name for each in copies.standbys) or "none"
        return error(
            _CHECK,
            f"no mail is accepted: each commit waits for {missing} more of "
            f"synchronous_standby_names = '{copies.names}'; connected: {there}",
            "start the standby; with fewer in synchronous_standby_names mail has fewer copies",
        )
    if subscribers := [each.name for each in copies.confirming if each.logical]:
        return warning(
            _CHECK,
            _sentence(f"may lose mail: {subscribers[0]} confirms commits, and is no copy"),
            "name the standbys in synchronous_standby_names",
        )
    found = f"would lose nothing that was answered with 250: {_confirmed(copies)}"
    if copies.missing:
        what = _sentence(f"{found}. A standby is missing: {copies.missing}")
        return warning(_CHECK, what, _return(copies))
    return _fine(found)


def _without_names(copies: Copies) -> Diagnosis:
    if copies.missing and not copies.physical:
        return warning(_CHECK, _sentence(f"{_NO_STANDBY}, and {copies.missing}"), _return(copies))
    return _fine(_last_moments(copies))


def _return(copies: Copies) -> str:
    if copies.absent:
        slot = copies.absent[0].replace("'", "''")
        return f"start it or clone it anew, or SELECT pg_drop_replication_slot('{slot}');"
    return "start it or clone it anew, or take its host out of the URI"


def _last_moments(copies: Copies) -> str:
    if not copies.physical:
        return _NO_STANDBY
    best = min(copies.physical, key=lambda each: (each.octets is None, each.octets or 0))
    behind = "still copies" if best.octets is None else f"is {_size(best.octets)} behind"
    return (
        "would lose the commits of the last moments: they wait for no standby, and "
        f"{best.name} {behind}"
    )


def _confirmed(copies: Copies) -> str:
    # of FIRST n the n that count now are `sync`, and a `potential` one takes over
    able = [each.name for each in copies.standbys if each.confirms in (*_CANDIDATES, "potential")]
    if len(able) == 1:
        return (
            f"the standby {able[0]} confirms each commit; without it no mail would be accepted, "
            "because no other may confirm"
        )
    confirm = "confirms" if copies.number == 1 else "confirm"
    found = f"{copies.number} of {len(able)} standbys {confirm} each commit"
    if len(able) == copies.number:
        found += "; without one of them no mail would be accepted"
    return found


def _fine(what: str) -> Diagnosis:
    return Diagnosis(_CHECK, "ok", _sentence(what))


def _sentence(what: str) -> str:
    return f"the loss of the database's host {what}"


def _size(octets: int) -> str:
    for unit, shift in (("GB", 30), ("MB", 20), ("kB", 10)):
        if octets >> shift:
            return f"{octets >> shift} {unit}"
    return f"{octets} octets"
