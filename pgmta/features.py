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
    """What a feature adds. docs/develop/architecture.md says of each field where the core uses it.

    A place that begins with a dot is in the feature's own package. The comment behind a field names
    what its places have, if that is a type.
    """

    needs: tuple[str, ...] = ()
    schema: tuple[str, ...] = ()
    more_schemas: tuple[str, ...] = ()
    commands: Mapping[str, Command] = field(default_factory=dict)
    sections: Mapping[str, Place] = field(default_factory=dict)  # Section
    more_keys: Mapping[str, Place] = field(default_factory=dict)  # Section
    fixed: tuple[str, ...] = ()
    config_checks: tuple[Place, ...] = ()
    database_checks: tuple[Place, ...] = ()
    doctor_checks: tuple[Place, ...] = ()
    looks: tuple[Place, ...] = ()  # Look
    duties: tuple[Place, ...] = ()  # Duty, or a list of them
    loops: Mapping[str, Place] = field(default_factory=dict)
    named_loops: tuple[Place, ...] = ()  # NamedLoops
    process_parts: tuple[Place, ...] = ()
    stages: Mapping[str, Place] = field(default_factory=dict)  # OutgoingStage
    transports: Mapping[str, Place] = field(default_factory=dict)  # TransportKind
    route_keys: tuple[Place, ...] = ()  # ShapingRoute
    route_limits: tuple[Place, ...] = ()  # ShownLimit
    beginning: tuple[Place, ...] = ()  # BeginCompanion
    settling: tuple[Place, ...] = ()  # SettleCompanion
    explainers: tuple[Place, ...] = ()  # Explainer
    waits_for: str = ""
    routes: tuple[Place, ...] = ()  # WebPart
    servers: Mapping[str, Place] = field(default_factory=dict)  # returns a SideServer or None
    first_steps: tuple[Place, ...] = ()  # FirstStep


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
