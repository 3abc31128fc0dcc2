"""Each feature can be removed: its folder and its line go, and the rest works as before."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
import yaml

from pgmta.features import FEATURES, features, load
from queued.cli.commands.token import make_keys
from tests.scenarios.conftest import installation
from tests.support.copies import PACKAGES, Copy
from tests.support.database import fresh_database
from tests.support.dkim import Keys
from tests.support.submit import post
from tests.support.trees import environment_of

IMPORT_ALL = f"""
import importlib, pkgutil
from pgmta.features import FEATURES
unused = {{"pgmta.django"}}
if "http_api" in FEATURES:
    from pgmta_features.http_api.api import RESOURCES
    unused |= {{f"pgmta_features.http_api.resources.{{name}}" for name, feature in RESOURCES.items()
               if feature and feature not in FEATURES}}
for name in {PACKAGES}:
    package = importlib.import_module(name)
    for each in pkgutil.walk_packages(package.__path__, name + "."):
        if not each.name.endswith("__main__") and each.name not in unused:
            importlib.import_module(each.name)
"""


def with_dependents(name: str) -> set[str]:
    """Return a feature and all that need it."""
    gone = {name}
    for other, feature in features().items():  # each after those that it needs
        if gone.intersection(feature.needs):
            gone.add(other)
    return gone


def keys_of(names: set[str], file: str) -> list[tuple[str, str]]:
    """Return section and key of what features add to a file; the key of a whole section is ''."""
    found = []
    for name in names:
        feature = features()[name]
        found += [(each, "") for each in feature.sections]
        for section, path in feature.more_keys.items():
            model = load(f"pgmta_features.{name}{path}")
            found += [(section, key) for key in model.model_fields]
    parted = [(*each.rpartition("/")[::2], key) for each, key in found]
    return [(section, key) for at, section, key in parted if at == file]


def check_dev_files(copy: Copy, gone: set[str]) -> None:
    """Check the configurations of `queuectl up` without the sections of features that are gone."""
    steps = [
        load(f"pgmta_features.{name}{path}")
        for name, feature in features().items() if name not in gone
        for path in feature.first_steps
    ]  # fmt: skip
    make_keys(copy.folder / "var", *(key for step in steps for key in step.keys))
    files = {"queued": ("", "queued", "check")}
    files |= {step.process: ("web", "queued", "web", "--check") for step in steps if step.process}
    for name, (file, *words) in files.items():
        path = copy.folder / "etc" / "dev" / f"{name}.yaml"
        settings = yaml.safe_load(path.read_text())
        for section, key in keys_of(gone, file):
            if key:
                settings.get(section, {}).pop(key, None)
            else:
                settings.pop(section, None)
        path.write_text(yaml.safe_dump(settings))
        done = copy.run("-m", *words, "-c", str(path))
        assert done.returncode == 0, done.stderr


@pytest.fixture(params=[*(pytest.param(n, marks=pytest.mark.slow) for n in FEATURES), "all"])
def gone(request: pytest.FixtureRequest) -> set[str]:
    """The features that are removed."""
    return set(FEATURES) if request.param == "all" else with_dependents(request.param)


@pytest.fixture
def bare_database(server: str) -> Iterator[str]:
    """URI of a database without any schema."""
    with fresh_database(server) as uri:
        yield uri


@pytest.mark.slow
def test_a_feature_is_removed(gone: set[str], bare_database: str, tmp_path: Path) -> None:
    copy = Copy(tmp_path / "copy", [name for name in FEATURES if name not in gone])

    done = copy.run("-c", IMPORT_ALL)
    assert (done.returncode, done.stderr) == (0, "")

    config = tmp_path / "queued.yaml"
    settings = {"environment": {"database": {"uri": bare_database}, "directory": str(tmp_path)}}
    config.write_text(yaml.safe_dump(settings))
    done = copy.queuectl("database", "migrate", "-c", str(config))
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
        own = keys_of(gone, file)
        if not own:
            continue
        given: dict[str, dict[str, None]] = {}
        for section, key in own:
            given.setdefault(section, {}).update({key: None} if key else {})
        config.write_text(yaml.safe_dump(settings | given))
        done = copy.run("-m", *words, "-c", str(config))
        assert done.returncode != 0
        for section, key in own:
            assert f"{section}{key and '.'}{key}: unknown key" in done.stderr

    check_dev_files(copy, gone)

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


@pytest.mark.slow
def test_mail_goes_without_any_feature(bare_database: str, tmp_path: Path) -> None:
    copy = Copy(tmp_path / "copy", [])
    keys = Keys(tmp_path)
    config = tmp_path / "queuectl.yaml"
    config.write_text(yaml.safe_dump({"environment": {"database": {"uri": bare_database}}}))

    def queuectl(*words: str) -> None:
        done = copy.queuectl(*words, "-c", str(config))
        assert done.returncode == 0, done.stderr

    queuectl("database", "migrate")
    for system in installation(tmp_path, bare_database):
        system.environment |= environment_of(copy.folder)
        hop = system.hop()
        smtpd = system.smtpd()
        system.queued(hop, signing={"keys": [keys.entry("e")]})
        content = b"From: a@a.example\r\nSubject: x\r\n\r\nx\r\n"
        post(smtpd.port, "a@a.example", ["relayed@b.example"], content)
        (relayed,) = hop.wait_kept(1)
        assert keys.signers(relayed.content or b"") == ["a.example/e"]
        for name in ("released", "bounced"):
            system.enqueue(f"{name}@b.example", sender="a@a.example", status="SCHEDULED",
                           send_at=datetime.now(UTC) + timedelta(days=1))  # fmt: skip
        queuectl("hold", "--all", "--yes", "--reason", "x")
        system.ask("UPDATE queue SET send_at = NULL")
        queuectl("release", "--recipient", "released@b.example", "--yes")
        hop.wait_kept(2)
        queuectl("bounce", "--all", "--yes", "--reason", "x")
        hop.wait_kept(3)
        system.wait_empty()
        found = [each.recipients for each in hop.transactions[1:]]
        assert found == [["released@b.example"], ["a@a.example"]]
