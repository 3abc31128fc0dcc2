"""The features of this installation: what each adds to the core, as data.

The core imports no feature. It asks here, and gets names of modules that it imports when it needs
them, so `queuectl --help`, a short command and smtpd load none of a feature's code.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Protocol

FEATURES: tuple[str, ...] = (
    "top",
    "providers",
    "inquiries",
    "suspensions",
    "rates",
    "suppressions",
    "campaigns",
    "lifecycle",
    "callbacks",
    "metrics",
)
"""The folders of `pgmta_features` that are in use, each after those that it needs.

To remove a feature, remove its folder and its name here, and those that need it.
"""

SCHEMA = "pgmta"
"""The schema of the core in the database, which features extend."""

type Place = str
"""An object in a module, as `module:object`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command of queuectl: its place, its line in the help, and the heading over it."""

    place: Place
    line: str
    task: str = "More"


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """What a feature adds. A name that begins with a dot is in the feature's own package.

    `needs` are the features without which it can't be. `schema` are files of SQL in its folder,
    in the order in which a new database runs them, after the core's tables and before its roles.
    `commands` are commands of queuectl by name. `looks` are each a Look, which an idle process asks
    for duties and loops. `duties` are each a Duty, or a list of them.
    `loops` are functions by their names in the log: each takes the QueuedProcess and returns work
    that lasts until it is cancelled. `servers` are coroutines by the daemon that they serve beside:
    `queued` gives them its QueuedProcess, Presence and workers, `web` its Site and HttpServer. They
    return a SideServer once it answers, or None, and raise ConfigError.
    `sections` are models by their keys in queued.yaml, and `fixed` those of them that a running
    process does not take from a changed file. `more_keys` are models with further keys of the
    core's sections, by the names of these. In all three, a key such as `web/callbacks` stands in
    web.yaml. `config_checks` are functions that return the mistakes of
    a QueuedConfig. `settling` and `beginning` are each a SettleCompanion or a BeginCompanion.
    `routes` are each a WebPart: what `queued web` serves for the feature. `named_loops` are each a
    NamedLoops: loops that `--worker` chooses by their names. `database_checks` are coroutines that
    look, before a process begins, whether the database has what a QueuedConfig needs.
    `doctor_checks` are functions that return checks of `queuectl doctor` by name.
    `first_steps` are each a FirstStep of `queuectl up`. `more_schemas` are schemas of the database
    beside pgmta that the feature may have; a table `rights` in each has the rights of our roles.
    `stages` are stages of outgoing mail, each by the name of the core's stage before which it
    stands; that of '' stands after all. `explainers` are each an Explainer, which says for what
    mail waits; of several reasons that of the first one is shown.
    `transports` are each a TransportKind, by the names that routes give them.
    `route_keys` are models of a route in shaping.yaml with further keys, each a ShapingRoute, and
    `route_limits` are each a ShownLimit, which says what these keys limit.
    `process_parts` are functions that get each new QueuedProcess, and add keepers to its gate, and
    readers to its orders. `waits_for` is the name of a statement in its queries.sql: an expression
    of a row `q` of queue, for what it waits, which lists show; null if for nothing of the feature.
    """

    needs: tuple[str, ...] = ()
    schema: tuple[str, ...] = ()
    commands: Mapping[str, Command] = field(default_factory=dict)
    looks: tuple[Place, ...] = ()
    duties: tuple[Place, ...] = ()
    loops: Mapping[str, Place] = field(default_factory=dict)
    servers: Mapping[str, Place] = field(default_factory=dict)
    sections: Mapping[str, Place] = field(default_factory=dict)
    fixed: tuple[str, ...] = ()
    more_keys: Mapping[str, Place] = field(default_factory=dict)
    config_checks: tuple[Place, ...] = ()
    routes: tuple[Place, ...] = ()
    process_parts: tuple[Place, ...] = ()
    named_loops: tuple[Place, ...] = ()
    database_checks: tuple[Place, ...] = ()
    doctor_checks: tuple[Place, ...] = ()
    first_steps: tuple[Place, ...] = ()
    more_schemas: tuple[str, ...] = ()
    settling: tuple[Place, ...] = ()
    beginning: tuple[Place, ...] = ()
    stages: Mapping[str, Place] = field(default_factory=dict)
    explainers: tuple[Place, ...] = ()
    waits_for: str = ""
    transports: Mapping[str, Place] = field(default_factory=dict)
    route_keys: tuple[Place, ...] = ()
    route_limits: tuple[Place, ...] = ()


class SideServer(Protocol):
    """A server of a feature, which lives as long as its daemon."""

    def begin_stop(self) -> None:
        """Note that the daemon stops."""

    async def stop(self) -> None:
        """End, after all else has ended."""


@cache
def features() -> dict[str, Feature]:
    """Return the features by name, each after those that it needs.

    Raises ValueError if one stands before a feature that it needs.
    """
    known: dict[str, Feature] = {}
    for name in FEATURES:
        feature = importlib.import_module(f"pgmta_features.{name}").FEATURE
        if missing := [other for other in feature.needs if other not in known]:
            raise ValueError(f"feature {name} needs {', '.join(missing)} before it in FEATURES")
        known[name] = feature
    return known


def places(kind: str) -> Iterator[tuple[str, Place]]:
    """Yield the places of one field of all features, with their names if it is a mapping."""
    for name, feature in features().items():
        given = getattr(feature, kind)
        items = given.items() if isinstance(given, Mapping) else (("", each) for each in given)
        for key, place in items:
            text = place.place if isinstance(place, Command) else place
            yield key, f"pgmta_features.{name}{text}" if text.startswith(".") else text


def load(place: Place) -> Any:
    """Return the object at a place; its module is imported if nobody has done so before."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def loaded(kind: str) -> Iterator[Any]:
    """Yield the objects of one field of all features; those of a list one by one."""
    for _, place in places(kind):
        found = load(place)
        yield from found if isinstance(found, list) else [found]


def folder(feature: str) -> Path:
    """Return the folder of a feature."""
    return Path(__file__).parent.parent / "pgmta_features" / feature


def more_schemas() -> list[str]:
    """Return the schemas of features, beside SCHEMA."""
    return [schema for feature in features().values() for schema in feature.more_schemas]


async def begin_servers(daemon: str, *parts: Any) -> list[SideServer]:
    """Return the servers of features beside a daemon, whose parts they get. Raises ConfigError."""
    begun = [await load(place)(*parts) for name, place in places("servers") if name == daemon]
    return [server for server in begun if server]
