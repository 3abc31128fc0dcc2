"""The public names of package pgmta: complete, lazy, and shown in docs/programs/python.md."""

from __future__ import annotations

import ast
import importlib
from importlib.metadata import version

import pytest

import pgmta
from pgmta.client import own_connection
from tests.support.daemons import ROOT


def test_every_public_name_is_there() -> None:
    for name in pgmta.__all__:
        assert getattr(pgmta, name) is not None
        assert name in dir(pgmta)
    assert pgmta.enqueue is own_connection.enqueue
    assert pgmta.__version__ == version("pgmta")
    with pytest.raises(AttributeError, match="no attribute 'Submision'"):
        pgmta.Submision  # type: ignore[attr-defined]  # noqa: B018


def test_type_checkers_see_the_same_names() -> None:
    """The names under TYPE_CHECKING, in __all__ and in the table of modules are one list."""
    tree = ast.parse((ROOT / "pgmta" / "__init__.py").read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    seen = {alias.name: node.module for node in imports for alias in node.names}
    assert seen == pgmta._MODULES
    assert sorted([*seen, "__version__"]) == pgmta.__all__
    for name, module in seen.items():
        assert getattr(importlib.import_module(str(module)), name) is getattr(pgmta, name)
