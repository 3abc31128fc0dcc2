"""The JSON schemas for editors take what the programs take, and name unknown keys."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

ROOT = Path(__file__).parents[2]
NAMES = ("answers", "queued", "shaping", "smtpd", "web")
_COMMENTED = re.compile(r"^( *)#(?=[^\s#])", re.MULTILINE)
_LIKE = {"api": "web"}  # files whose keys are those of another one
_BLOCK = re.compile(r"```yaml\n(# \S*?(\w+)\.yaml\b.*?)```", re.DOTALL)


def problems(made: Path, name: str, data: Any) -> list[str]:
    schema = json.loads((made / "share" / "pgmta" / "schema" / f"{name}.json").read_text("utf-8"))
    Draft202012Validator.check_schema(schema)
    return [
        f"{'.'.join(map(str, error.absolute_path))}: {error.message}"
        for error in Draft202012Validator(schema).iter_errors(data)
    ]


def examples() -> list[Any]:
    """Files that are documented, also with each option, and blocks of the docs that name a file."""
    found: list[Any] = []
    for name in NAMES:
        text = (ROOT / "etc" / f"{name}.yaml").read_text(encoding="utf-8")
        found.append(pytest.param(name, text, id=f"etc/{name}.yaml"))
        found.append(pytest.param(name, _COMMENTED.sub(r"\1", text), id=f"{name}, each option"))
    for page in sorted(ROOT.glob("docs/**/*.md")):
        for number, block in enumerate(_BLOCK.finditer(page.read_text(encoding="utf-8"))):
            name = _LIKE.get(block[2], block[2])
            found.append(pytest.param(name, block[1], id=f"{page.name}, {number}"))
    return found


@pytest.mark.parametrize(("name", "text"), examples())
def test_valid_files_are_valid(made: Path, name: str, text: str) -> None:
    assert problems(made, name, yaml.safe_load(text) or {}) == []


def test_unknown_keys_and_wrong_values_are_named(made: Path) -> None:
    wrong = {"delivery": {"connektions": 5, "tls": {"mode": "bset"}}, "retry": {"jitter": []}}
    found = problems(made, "queued", wrong)
    assert len(found) == 3
    assert any("connektions" in each for each in found)
    assert any("bset" in each for each in found)
    routes = {"routes": [{"metadata.tenant": [4, "x"], "to": "mx"}, {"metadaat.tenant": 4}]}
    assert ["metadaat" in each for each in problems(made, "shaping", routes)] == [True]
    assert problems(made, "smtpd", {"include": "secret.yaml"}) == []
