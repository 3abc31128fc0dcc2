"""The shape of the product: folders and modules import each other in one direction."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from dataclasses import fields
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from pgmta.features import Feature

ROOT = Path(__file__).parents[2]
PACKAGES = ("pgmta", "pgmta_features", "queued", "smtpd")


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
def test_folders_import_each_other_in_one_direction(package: str) -> None:
    known = modules(package)
    below: dict[str, set[str]] = defaultdict(set)
    for path in known.values():
        for other in imported(path, known):
            below[folder_of(path)].add(folder_of(known[other]))
    seen: set[str] = set()

    def descend(folder: str, above: tuple[str, ...] = ()) -> None:
        assert folder not in above, " -> ".join((*above, folder))
        if folder not in seen:
            for other in below[folder] - {folder}:
                descend(other, (*above, folder))
            seen.add(folder)

    for folder in {folder_of(path) for path in known.values()}:
        descend(folder)


def test_modules_import_each_other_in_one_direction() -> None:
    known = {name: path for package in PACKAGES for name, path in modules(package).items()}
    order = TopologicalSorter({name: imported(path, known) for name, path in known.items()})
    order.prepare()


def test_architecture_names_every_module_of_the_core() -> None:
    page = (ROOT / "docs" / "develop" / "architecture.md").read_text(encoding="utf-8")
    listing = page.partition("## Folders and files")[2].partition("```text")[2].partition("```")[0]
    named = [
        f"{folder}/{name.strip()}"
        for folder, names in re.findall(r"^(\S+)((?: .*\n)+)", listing, re.MULTILINE)
        for name in re.sub(r"\([^)]*\)", "", names).split(",")
    ]
    there = {
        str(path.relative_to(ROOT).with_suffix(""))
        for folder, end in (
            ("smtpd", "py"),
            ("queued", "py"),
            ("pgmta", "py"),
            ("sql/schema", "sql"),
        )
        for path in (ROOT / folder).rglob(f"*.{end}")
        if not path.name.startswith("__")
    }
    assert (len(named), set(named)) == (len(there), there)


def test_architecture_has_every_field_of_a_feature() -> None:
    page = (ROOT / "docs" / "develop" / "architecture.md").read_text(encoding="utf-8")
    section = page.partition("### The fields of a feature")[2].partition("\n\nA feature names")[0]
    rows = re.findall(r"^\| `(.*?)` \|", section, re.MULTILINE)
    assert "`, `".join(rows).split("`, `") == [each.name for each in fields(Feature)]
