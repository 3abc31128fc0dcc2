"""docs/operate/troubleshooting.md: each symptom is planted, and its commands name the cause."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner

from queued.cli.queuectl import main
from tests.docs.night import Night
from tests.docs.test_templates import pattern
from tests.scenarios.conftest import installation
from tests.support.daemons import ROOT

PAGE = (ROOT / "docs" / "operate" / "troubleshooting.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (.+)\n((?:(?!## ).*\n)*)", PAGE, re.MULTILINE))


@pytest.fixture
def night(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Night]:
    """The installation, in its folder."""
    with ExitStack() as stack:
        for system in installation(tmp_path, database):
            monkeypatch.chdir(tmp_path)
            monkeypatch.setenv("PGMTA_CONFIG", "etc")  # never /etc/pgmta of this host
            yield Night(system, stack)


@pytest.mark.slow
def test_the_commands_of_each_symptom_name_its_cause(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sections are in the order of the page: the last ones stop daemon and database."""
    planted = night.faults(monkeypatch)
    assert len(SECTIONS) >= 15
    assert planted.keys() <= SECTIONS.keys()
    problems = []
    for name, text in SECTIONS.items():
        planted.get(name, lambda: None)()
        assert "Cause: " in text
        assert "Remedy: " in text
        (block,) = re.findall(r"^```console\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        asked = re.findall(r"^\$ queuectl (.*)\n((?:[^$].*\n)*)", block, re.MULTILINE)
        assert 1 <= len(asked) == block.count("\n$ ") + 1 <= 3, name
        for command, shown in asked:
            result = CliRunner().invoke(main, shlex.split(command))
            expected = "".join(map(pattern, shown.splitlines()))
            if not re.fullmatch(expected, result.output):
                problems.append(f"{name}: {command}\n{result.output}{result.exception!r}")
    assert not problems, "\n".join(problems)
