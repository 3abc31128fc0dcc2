"""scripts/check-owners: each field of a connection's state is written in the file of its class."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "check-owners"
PACE = """
class Pace:
    limit = 1
    window: int
    def __init__(self):
        self.size, self.began = 0, 0
        for self.each in ():
            pass
"""
READS = "def f(pace):\n    other = pace.size + pace.limit\n    pace.look()\n    self.mine = other\n"


@pytest.fixture(scope="module")
def checker() -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("check_owners", str(SCRIPT))
    spec = importlib.util.spec_from_loader("check_owners", loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def found(checker: ModuleType, text: str, name: str = "smtpd/session/other.py") -> list[str]:
    return list(checker.errors({"smtpd/session/closing.py": PACE, name: text}))


@pytest.mark.parametrize("line", [
    "pace.size = 1", "self.pace.began += 1", "del pace.limit", "pace.window: int = 1",
    "a, pace.size = 1, 2", "for pace.each in (): pass", "with x as pace.began: pass",
    "setattr(pace, 'any', 1)", "delattr(pace, name)", "vars(pace).update(any=1)",
    "pace.__dict__['any'] = 1",
])  # fmt: skip
def test_each_way_to_write_a_field_is_seen(checker: ModuleType, line: str) -> None:
    assert len(found(checker, line)) == 1
    assert len(found(checker, line, "smtpd/hooks/other.py")) == 1


def test_own_fields_and_those_of_other_classes_are_free(checker: ModuleType) -> None:
    assert found(checker, READS) == []
    assert found(checker, "call.loop = message.body = 1") == []


def test_a_field_of_two_classes_is_written_on_self_alone(checker: ModuleType) -> None:
    text = "class Other:\n    size = 1\n    def f(self):\n        self.size = 2\n"
    assert found(checker, text) == []
    assert len(found(checker, text + "        self.pace.size = 3\n")) == 1


def test_no_field_is_inherited_from_another_file(checker: ModuleType) -> None:
    assert len(found(checker, "class Other(Pace):\n    pass\n")) == 1


def test_smtpd_has_no_mistakes() -> None:
    subprocess.run([sys.executable, str(SCRIPT)], check=True)
