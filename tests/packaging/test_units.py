"""The units of systemd: their exposure, their commands, and reasons for what they leave out."""

from __future__ import annotations

import configparser
import re
import subprocess
from pathlib import Path

import pytest

from tests.support.daemons import ROOT

UNITS = sorted((ROOT / "etc" / "systemd").iterdir())
SERVICES = [path for path in UNITS if path.suffix == ".service"]
MOST = 2.5


def reasons(path: Path) -> dict[str, str]:
    """The directives that a unit leaves out, with the reason of each."""
    _, _, text = path.read_text().partition("\n# Left out, with the reason:\n")
    found: dict[str, str] = {}
    for line in text.splitlines():
        if not (match := re.fullmatch(r"# ([\w, ]+): (.+)", line)):
            break
        found |= dict.fromkeys(match[1].split(", "), match[2])
    return found


def read(path: Path) -> configparser.RawConfigParser:
    """The sections of a unit."""
    unit = configparser.RawConfigParser(strict=False, comment_prefixes=("#",), delimiters=("=",))
    unit.optionxform = str  # type: ignore[method-assign,assignment]
    unit.read(path)
    return unit


def test_the_api_may_do_what_the_pages_may() -> None:
    folder = ROOT / "etc" / "systemd"
    web, api = (read(folder / f"queued-{name}.service") for name in ("web", "api"))
    own = {"Description", "ExecStart", "SyslogIdentifier"}
    differ = {
        key for name in {*web.sections(), *api.sections()}
        for key in {*web[name], *api[name]} if web[name].get(key) != api[name].get(key)
    }  # fmt: skip
    assert differ == own


@pytest.mark.needs("systemd")
@pytest.mark.parametrize("path", SERVICES, ids=lambda path: path.name)
def test_the_exposure_is_small(path: Path) -> None:
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", path],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    # what it misses has a reason, and nothing else has one
    missed = set(re.findall(r"^✗ ([A-Za-z]+)=", done.stdout, re.MULTILINE))
    assert set(reasons(path)) == missed - set(
        re.findall(r"^(\w+)=", path.read_text(), re.MULTILINE)
    )
    found = re.search(r"exposure level for .*: ([0-9.]+)", done.stdout)
    assert found, (done.stdout, done.stderr)
    assert float(found[1]) <= MOST


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_is_read(path: Path) -> None:
    unit = read(path)
    assert unit["Unit"]["Description"].startswith("pgmta: ")
    if path.suffix == ".service":
        command = unit["Service"]["ExecStart"].split()[0]
        assert command in (ROOT / "pyproject.toml").read_text()
