"""The shape of the product: floors of folders, and protocols with two implementations."""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("pgmta", "queued", "smtpd")
FLOORS, PROTOCOLS = 10, 15

Methods = dict[str, frozenset[str]]


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def modules(*folders: str) -> dict[str, Path]:
    """Return the path of each module of these folders by its dotted name."""
    found = {}
    for path in (path for folder in folders for path in (ROOT / folder).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(path: Path, known: dict[str, Path]) -> set[str]:
    """Return the modules that a file imports, those for types included."""
    found = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                found.add(name if name in known else node.module)
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
    return found & set(known)


def folder_of(path: Path) -> str:
    """Return the folder of a module; a file at the top of a package stands for itself."""
    name = path.relative_to(ROOT)
    return str(name if len(name.parts) == 2 else name.parent)


@pytest.mark.parametrize("package", PACKAGES)
def test_folders_stand_on_floors_without_an_arrow_back(package: str) -> None:
    known = modules(package)
    below: dict[str, set[str]] = defaultdict(set)
    for path in known.values():
        for other in imported(path, known):
            below[folder_of(path)].add(folder_of(known[other]))
    floors: dict[str, int] = {}

    def floor(folder: str, above: tuple[str, ...] = ()) -> int:
        assert folder not in above, " -> ".join((*above, folder))
        if folder not in floors:
            others = below[folder] - {folder}
            lower = max((floor(each, (*above, folder)) for each in others), default=0)
            floors[folder] = lower + (not folder.endswith(".py"))  # a file is no floor
        return floors[folder]

    for folder in {folder_of(path) for path in known.values()}:
        assert floor(folder) <= FLOORS, folder


def classes(*folders: str) -> dict[str, tuple[bool, frozenset[str]]]:
    """Return of each class whether it is a protocol, and the names that it has."""
    found = {}
    for name, path in modules(*folders).items():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef):
                protocol = any(ast.unparse(b).partition("[")[0] == "Protocol" for b in node.bases)
                names = {
                    n.name
                    for n in node.body
                    if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)
                }
                names |= {
                    n.attr if isinstance(n, ast.Attribute) else n.id
                    for n in ast.walk(node)
                    if isinstance(n, ast.Attribute | ast.Name) and isinstance(n.ctx, ast.Store)
                }
                found[f"{name}.{node.name}"] = protocol, frozenset(names)
    return found


ELSEWHERE = {
    "pgmta.client.own_connection.AsyncAlchemy": (
        "sqlalchemy.ext.asyncio", "AsyncConnection", "AsyncSession",
    )
}  # fmt: skip
"""Protocols whose implementations are classes of other packages."""


def test_a_protocol_has_two_implementations() -> None:
    everything = classes(*PACKAGES, "tests", "bench")
    protocols = {
        name: names
        for name, (protocol, names) in everything.items()
        if protocol and name.partition(".")[0] in PACKAGES
    }
    assert len(protocols) <= PROTOCOLS, sorted(protocols)
    for name, names in protocols.items():
        if name in ELSEWHERE:
            package, *kinds = ELSEWHERE[name]
            found = import_module(package)
            assert all(each in dir(getattr(found, kind)) for kind in kinds for each in names)
            continue
        others = [
            each for each, (protocol, has) in everything.items() if names <= has and not protocol
        ]
        assert len(others) >= 2, (name, others)


TWINS = ("pgmta/store/", "queued/cli/commands/", "queued/upkeep/")
"""Folders whose files are named as their twins: statements, commands and duties."""


def test_the_name_of_a_file_occurs_once() -> None:
    found = defaultdict(list)
    for path in modules(*PACKAGES).values():
        if not (path.stem.startswith("__") or str(path.relative_to(ROOT)).startswith(TWINS)):
            found[path.stem].append(str(path.relative_to(ROOT)))
    assert {name: files for name, files in found.items() if len(files) > 1} == {}


def test_the_name_of_a_class_occurs_once() -> None:
    names = [name.rpartition(".")[2] for name in classes(*PACKAGES)]
    assert {name for name in names if names.count(name) > 1} == set()
