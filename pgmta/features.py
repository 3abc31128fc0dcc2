"""The features of this installation: what each adds to the core, as data.

The core imports no feature. It asks here, and gets names of modules that it imports when it needs
them, so `queuectl --help`, a short command and smtpd load none of a feature's code.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from pgmta.errors import FeatureError

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
    "events",
    "webhooks",
    "http_api",
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
    """A command of queuectl: its path, its line in the help, and the heading over it.

    Who takes one of the words in `also` for a command is told this one.
    """

    path: ImportPath
    line: str
    task: str = "More"
    also: tuple[str, ...] = ()


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
    config_checks: tuple[ImportPath, ...] = ()
    doctor_checks: tuple[ImportPath, ...] = ()
    looks: tuple[ImportPath, ...] = ()  # Look
    duties: tuple[ImportPath, ...] = ()  # Duty, or a list of them
    loops: Mapping[str, ImportPath] = field(default_factory=dict)
    named_loops: tuple[ImportPath, ...] = ()  # NamedLoops
    process_parts: tuple[ImportPath, ...] = ()
    stages: Mapping[str, ImportPath] = field(default_factory=dict)  # OutgoingStage
    transports: Mapping[str, ImportPath] = field(default_factory=dict)  # TransportKind
    route_keys: tuple[ImportPath, ...] = ()  # ShapingRoute
    beginning: tuple[ImportPath, ...] = ()  # BeginCompanion
    settling: tuple[ImportPath, ...] = ()  # SettleCompanion
    explainers: tuple[ImportPath, ...] = ()  # Explainer
    waits_for: str = ""
    routes: Mapping[str, ImportPath] = field(default_factory=dict)  # WebPart
    servers: Mapping[str, ImportPath] = field(default_factory=dict)  # returns a SideServer or None
    first_steps: tuple[ImportPath, ...] = ()  # FirstStep
    recipient_looks: tuple[ImportPath, ...] = ()  # makes a GroupedLook of Resources


class SideServer(Protocol):
    """A server of a feature, which lives as long as its daemon."""

    def begin_stop(self) -> None:
        """Note that the daemon stops."""

    async def stop(self) -> None:
        """End, after all else has ended."""


@cache
def features() -> dict[str, Feature]:
    """Return the features by name, each after those that it needs.

    Raises FeatureError if one has no folder, or does not stand behind those that it needs.
    """
    known: dict[str, Feature] = {}
    for name in FEATURES:
        # the file, because git leaves a folder in which Python has put its __pycache__
        if not (folder(name) / "__init__.py").is_file():
            raise FeatureError(
                f"feature {name} has no folder pgmta_features/{name} with an __init__.py: "
                "remove its name from FEATURES in pgmta/features.py, or bring the folder back"
            )
        feature: Feature = importlib.import_module(f"pgmta_features.{name}").FEATURE
        if missing := ", ".join(other for other in feature.needs if other not in known):
            raise FeatureError(
                f"feature {name} needs {missing}, which FEATURES in pgmta/features.py does not "
                f"have before it: remove {name} too, or put {missing} before it"
            )
        known[name] = feature
    return known


def import_paths(kind: str) -> Iterator[tuple[str, str, ImportPath]]:
    """Yield the paths of one field: the feature, the name if the field is a mapping, the path."""
    for feature, fields in features().items():
        given = getattr(fields, kind)
        items = given.items() if isinstance(given, Mapping) else (("", each) for each in given)
        for name, path in items:
            text = path.path if isinstance(path, Command) else path
            yield feature, name, f"pgmta_features.{feature}{text}" if text[0] == "." else text


class Givers:
    """Remembers who gave each of some names, which have to differ; `core` are those of the core."""

    def __init__(self, core: Iterable[str]) -> None:
        self._givers = dict.fromkeys(core, "the core")

    def note(self, feature: str, name: str, what: str) -> None:
        """Note a name of a feature. Raises FeatureError if it is given already."""
        giver = f"feature {feature}"
        if (other := self._givers.setdefault(name, giver)) != giver:
            raise FeatureError(
                f"{other} and {giver} both have the {what} {name!r}: rename one, or remove {giver}"
            )


def named_paths(kind: str, core: Iterable[str], what: str) -> dict[str, ImportPath]:
    """Return the paths of one field by their names; no two of them, or of `core`, may be equal.

    `what` has such a name, for the error. Raises FeatureError.
    """
    givers = Givers(core)
    found = {}
    for feature, name, path in import_paths(kind):
        givers.note(feature, name, what)
        found[name] = path
    return found


def load(path: ImportPath) -> Any:
    """Return the object at a path; its module is imported if nobody has done so before."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def loaded(kind: str) -> Iterator[Any]:
    """Yield the objects of one field of all features; those of a list one by one."""
    for _, _, path in import_paths(kind):
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
    paths = (path for _, name, path in import_paths("servers") if name == daemon)
    begun = [await load(path)(*parts) for path in paths]
    return [server for server in begun if server]
