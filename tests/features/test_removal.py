"""Each feature can be removed: its folder and its line go, and the rest works as before."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import yaml

from pgmta.features import FEATURES, features
from tests.support.copies import PACKAGES, Copy
from tests.support.database import fresh_database

IMPORT_ALL = f"""
import importlib, pkgutil
for name in {PACKAGES}:
    package = importlib.import_module(name)
    for each in pkgutil.walk_packages(package.__path__, name + "."):
        if not each.name.endswith("__main__") and each.name != "pgmta.django":
            importlib.import_module(each.name)
"""


def with_dependents(name: str) -> set[str]:
    """Return a feature and all that need it."""
    gone = {name}
    for other, feature in features().items():  # each after those that it needs
        if gone.intersection(feature.needs):
            gone.add(other)
    return gone


@pytest.fixture(params=[*FEATURES, "all"])
def gone(request: pytest.FixtureRequest) -> set[str]:
    """The features that are removed."""
    return set(FEATURES) if request.param == "all" else with_dependents(request.param)


@pytest.fixture
def bare_database(server: str) -> Iterator[str]:
    """URI of a database without any schema."""
    with fresh_database(server) as uri:
        yield uri


def test_a_feature_is_removed(gone: set[str], bare_database: str, tmp_path: Path) -> None:
    copy = Copy(tmp_path / "copy", [name for name in FEATURES if name not in gone])

    done = copy.run("-c", IMPORT_ALL)
    assert (done.returncode, done.stderr) == (0, "")

    config = tmp_path / "queued.yaml"
    settings = {"environment": {"database": {"uri": bare_database}, "directory": str(tmp_path)}}
    config.write_text(yaml.safe_dump(settings))
    done = copy.queuectl("migrate", "-c", str(config))
    assert done.returncode == 0, done.stderr
    with psycopg.connect(bare_database) as db:
        assert db.execute("SELECT count(*) FROM pgmta.queue").fetchone() == (0,)

    shown = copy.queuectl("--help")
    assert shown.returncode == 0, shown.stderr
    for name, feature in features().items():
        for command in feature.commands:
            if " " in command:
                continue  # a form of a command, which has no line of its own
            there = re.search(rf"^  {command} ", shown.stdout, re.MULTILINE) is not None
            assert there == (name not in gone), command

    for file, words in {"": ("queued", "check"), "web": ("queued", "web", "--check")}.items():
        keys = [key for name in gone for key in features()[name].sections]
        sections = [name for at, _, name in (key.rpartition("/") for key in keys) if at == file]
        if not sections:
            continue
        config.write_text(yaml.safe_dump(settings | {name: {} for name in sections}))
        done = copy.run("-m", *words, "-c", str(config))
        assert done.returncode != 0
        for name in sections:
            assert f"{name}: unknown key" in done.stderr

    for name in gone:
        for transport in features()[name].transports:
            (tmp_path / "shaping.yaml").write_text(f"routes: [{{transport: {transport}}}]")
            config.write_text(yaml.safe_dump(settings | {"shaping": "shaping.yaml"}))
            done = copy.run("-m", "queued", "check", "-c", str(config))
            assert done.returncode != 0
            assert f"no transport '{transport}'" in done.stderr
    config.write_text(yaml.safe_dump(settings))
    done = copy.run("-m", "queued", "check", "-c", str(config))
    assert done.returncode == 0, done.stderr
    done = copy.run("-m", "queued", "web", "--check", "-c", str(config))
    assert done.returncode == 0, done.stderr
