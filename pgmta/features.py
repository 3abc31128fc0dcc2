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

type ImportPath = str
"""An object in a module, as `module:object`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command of queuectl: its path, its line in the help, and the heading over it."""

    path: ImportPath
    line: str
    task: str = "More"


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """What a feature adds. docs/develop/architecture.md says of each field where the core uses it.

    A path that begins with a dot is in the feature's own package. The comment behind a field names
    what its paths lead to, if that is a type.
    """

    needs: tuple[str, ...] = ()
    schema: tuple[str, ...] = ()
    more_schemas: tuple[str, ...] = ()
    commands: Mapping[str, Command] = field(default_factory=dict)
    sections: Mapping[str, ImportPath] = field(default_factory=dict)  # Section
    more_keys: Mapping[str, ImportPath] = field(default_factory=dict)  # Section
    fixed: tuple[str, ...] = ()
    config_checks: tuple[ImportPath, ...] = ()
    database_checks: tuple[ImportPath, ...] = ()
    doctor_checks: tuple[ImportPath, ...] = ()
    looks: tuple[ImportPath, ...] = ()  # Look
    duties: tuple[ImportPath, ...] = ()  # Duty, or a list of them
    loops: Mapping[str, ImportPath] = field(default_factory=dict)
    named_loops: tuple[ImportPath, ...] = ()  # NamedLoops
    process_parts: tuple[ImportPath, ...] = ()
    stages: Mapping[str, ImportPath] = field(default_factory=dict)  # OutgoingStage
    transports: Mapping[str, ImportPath] = field(default_factory=dict)  # TransportKind
    route_keys: tuple[ImportPath, ...] = ()  # ShapingRoute
    route_limits: tuple[ImportPath, ...] = ()  # ShownLimit
    beginning: tuple[ImportPath, ...] = ()  # BeginCompanion
    settling: tuple[ImportPath, ...] = ()  # SettleCompanion
    explainers: tuple[ImportPath, ...] = ()  # Explainer
    waits_for: str = ""
    routes: tuple[ImportPath, ...] = ()  # WebPart
    servers: Mapping[str, ImportPath] = field(default_factory=dict)  # returns a SideServer or None
    first_steps: tuple[ImportPath, ...] = ()  # FirstStep


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


def import_paths(kind: str) -> Iterator[tuple[str, ImportPath]]:
    """Yield the paths of one field of all features, with their names if it is a mapping."""
    for name, feature in features().items():
        given = getattr(feature, kind)
        items = given.items() if isinstance(given, Mapping) else (("", each) for each in given)
        for key, path in items:
            text = path.path if isinstance(path, Command) else path
            yield key, f"pgmta_features.{name}{text}" if text.startswith(".") else text


def load(path: ImportPath) -> Any:
    """Return the object at a path; its module is imported if nobody has done so before."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def loaded(kind: str) -> Iterator[Any]:
    """Yield the objects of one field of all features; those of a list one by one."""
    for _, path in import_paths(kind):
        found = load(path)
        yield from found if isinstance(found, list) else [found]


def folder(feature: str) -> Path:
    """Return the folder of a feature."""
    return Path(__file__).parent.parent / "pgmta_features" / feature


def more_schemas() -> list[str]:
    """Return the schemas of features, beside SCHEMA."""
    return [schema for feature in features().values() for schema in feature.more_schemas]


async def begin_servers(daemon: str, *parts: Any) -> list[SideServer]:
    """Return the servers of features beside a daemon, whose parts they get. Raises ConfigError."""
    begun = [await load(path)(*parts) for name, path in import_paths("servers") if name == daemon]
    return [server for server in begun if server]
