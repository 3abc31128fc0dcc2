"""Each field of a connection's state is written in one file: that of its class."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
OWNED = ("smtpd/session", "smtpd/server", "smtpd/commands")
WRITERS = (*OWNED, "smtpd/hooks", "smtpd/message", "smtpd/policy", "smtpd/process")
# of other classes, with a field of the same name
OTHERS = {"transaction", "scratch", "message", "copied", "call"}
LOOPS = "arguments[1]"  # a hook's session


def _trees(folder: str) -> Iterator[tuple[str, ast.Module]]:
    for path in sorted((ROOT / folder).rglob("*.py")):
        yield str(path.relative_to(ROOT)), ast.parse(path.read_text(encoding="utf-8"))


def _written(tree: ast.AST) -> Iterator[tuple[ast.Attribute, bool]]:
    """Each attribute that is assigned or deleted, and whether it is one of `self`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            yield node, isinstance(node.value, ast.Name) and node.value.id == "self"


def _fields() -> dict[str, set[str]]:
    """The files that have a class with a field of each name."""
    found: dict[str, set[str]] = defaultdict(set)
    for folder in OWNED:
        for name, tree in _trees(folder):
            for node in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
                for attribute, own in _written(node):
                    if own:
                        found[attribute.attr].add(name)
                for line in node.body:  # fields of dataclasses
                    if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                        found[line.target.id].add(name)
    return found


def test_each_field_is_written_in_the_file_of_its_class() -> None:
    fields = _fields()
    assert {"phase", "incoming", "transaction", "queued"} <= fields.keys()
    foreign = [
        f"{name}:{attribute.lineno}: {ast.unparse(attribute)}"
        for folder in WRITERS
        for name, tree in _trees(folder)
        for attribute, own in _written(tree)
        if not own and attribute.attr in fields and name not in fields[attribute.attr]
        if (other := ast.unparse(attribute.value)) not in OTHERS and not other.endswith(LOOPS)
    ]
    assert foreign == []


def test_each_field_has_one_file() -> None:
    """A class that inherits fields is in the file of the other one."""
    for name, tree in _trees("smtpd/session"):
        classes = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
        for node in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
            bases = {base.id for base in node.bases if isinstance(base, ast.Name)}
            assert bases <= {*classes, "Protocol", "Enum", "StrEnum"}, f"{name}: {node.name}"
