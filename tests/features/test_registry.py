"""Features that do not fit together: each command names them in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgmta.features import FEATURES
from tests.support.copies import Copy

QUEUECTL = ("-c", "from queued.cli.queuectl import main; main()", "--help")
QUEUED = ("-m", "queued", "check", "-c", "queued.yaml")
WEB = ("-m", "queued", "web", "--check", "-c", "queued.yaml")


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    """A copy of the product with a feature `again`, whose routes are in the file of queued."""
    folder = tmp_path_factory.mktemp("features")
    (folder / "again").mkdir()
    copy = Copy(folder / "copy", FEATURES, [folder / "again"])
    (copy.folder / "queued.yaml").write_text("shaping: shaping.yaml")
    (copy.folder / "shaping.yaml").write_text("routes: [{to: mx}]")
    return copy


def refused(copy: Copy, command: tuple[str, ...]) -> str:
    """Return the reason why a command ends, which is one line."""
    done = copy.run(*command)
    assert done.returncode == 1, done.stderr
    (line,) = done.stderr.splitlines()
    return line.removeprefix("error: ")


@pytest.mark.parametrize(
    ("given", "command", "what", "other"),
    [
        ("commands={'top': Command(path='.a:b', line='')}", QUEUECTL, "command 'top'", "top"),
        ("commands={'hold': Command(path='.a:b', line='')}", QUEUECTL, "command 'hold'", ""),
        ("sections={'suppressions': 'pgmta_features.suppressions.config:Suppressions'}", QUEUED,
         "section 'suppressions'", "suppressions"),
        ("sections={'web/public': 'pgmta_features.suppressions.config:Suppressions'}", WEB,
         "section 'web/public'", ""),
        ("more_keys={'retention': 'pgmta_features.lifecycle.config:LifecycleRetention'}", QUEUED,
         "key of section retention 'tokens'", "lifecycle"),
        ("route_keys=('pgmta_features.rates.config:RatedRoute',)", QUEUED, "key of routes",
         "rates"),
        ("transports={'smtp': '.a:b'}", QUEUED, "transport 'smtp'", ""),
    ],
)  # fmt: skip
def test_a_name_is_given_twice(
    copy: Copy, given: str, command: tuple[str, ...], what: str, other: str
) -> None:
    file = copy.folder / "pgmta_features" / "again" / "__init__.py"
    file.write_text(f"from pgmta.features import Command, Feature\nFEATURE = Feature({given})\n")
    givers = f"feature {other}" if other else "the core"
    assert refused(copy, command).startswith(f"{givers} and feature again both have the {what}")


@pytest.mark.parametrize("command", [QUEUECTL, QUEUED, WEB])
def test_a_feature_lacks_another_one(tmp_path: Path, command: tuple[str, ...]) -> None:
    copy = Copy(tmp_path / "copy", [name for name in FEATURES if name != "rates"])
    (copy.folder / "queued.yaml").touch()
    assert refused(copy, command).startswith("feature campaigns needs rates, ")


def test_git_has_left_the_folder_of_a_feature(copy: Copy) -> None:
    folder = copy.folder / "pgmta_features" / "again"
    (folder / "__init__.py").unlink(missing_ok=True)
    (folder / "__pycache__").mkdir(exist_ok=True)
    assert refused(copy, QUEUECTL).startswith("feature again has no folder ")
