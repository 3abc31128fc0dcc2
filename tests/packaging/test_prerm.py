"""The removal of the Debian package ends all units and leaves no link to one of them."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.support.daemons import ROOT

PRERM = ROOT / "packaging" / "debian" / "prerm"
UNITS = [path for path in (ROOT / "etc" / "systemd").iterdir() if "\n[Install]" in path.read_text()]
SYSTEMCTL = """#!/bin/sh
# knows `disable`, which takes no pattern, and notes all calls
echo "$@" >> "$ROOT_FOLDER/calls"
[ "$1" = disable ] || exit 0
shift
for unit in "$@"; do rm -f "$ROOT_FOLDER"/etc/systemd/system/*.wants/"$unit"; done
"""


def enabled(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("etc/systemd/system/*.wants/*")}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A root in which all units are enabled, templates twice, beside one of another package."""
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    for unit in [*UNITS, Path("cron.service")]:
        target = "timers" if unit.suffix == ".timer" else "multi-user"
        wants = tmp_path / f"etc/systemd/system/{target}.target.wants"
        wants.mkdir(parents=True, exist_ok=True)
        for name in ("a", "b") if "@" in unit.name else ("",):
            (wants / unit.name.replace("@", f"@{name}")).symlink_to(unit)
    (tmp_path / "systemctl").write_text(SYSTEMCTL)
    (tmp_path / "systemctl").chmod(0o755)
    return tmp_path


def run(folder: Path, action: str) -> list[str]:
    """Run the script as dpkg does, with the folder as root; return the calls of systemctl."""
    script = re.sub(r"/(?=(?:run|etc)/systemd)", f"{folder}/", PRERM.read_text())
    path = f"{folder}:{os.environ['PATH']}"
    environment = {"PATH": path, "ROOT_FOLDER": str(folder)}
    subprocess.run(["sh", "-c", script, "prerm", action], env=environment, check=True)
    calls = folder / "calls"
    return calls.read_text().splitlines() if calls.exists() else []


def test_a_removal_ends_each_unit_and_removes_its_links(folder: Path) -> None:
    before = enabled(folder)
    assert len(before) == len(UNITS) + 3  # two templates, and cron
    calls = run(folder, "remove")
    assert enabled(folder) == {"cron.service"}
    ended = {word for call in calls for word in call.split() if "." in word}
    assert ended == {unit.name.replace("@", "@*") for unit in UNITS}
    assert calls[0].startswith("disable --now ")


def test_an_upgrade_leaves_the_units_as_they_are(folder: Path) -> None:
    before = enabled(folder)
    assert run(folder, "upgrade") == []
    assert enabled(folder) == before


def test_without_systemd_nothing_is_done(folder: Path) -> None:
    (folder / "run/systemd/system").rmdir()
    assert run(folder, "remove") == []
