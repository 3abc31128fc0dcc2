"""queuectl has a command that is in its list."""

from __future__ import annotations

from pathlib import Path

import yaml
from click.testing import CliRunner

from queued.cli.options.lazy_group import LazyCommand, LazyGroup
from queued.cli.queuectl import all_commands
from tests.exercises.command.daemons import daemons


def test_queuectl_has_a_command_that_is_listed(database: str, tmp_path: Path) -> None:
    config = tmp_path / "queued.yaml"
    config.write_text(yaml.safe_dump({"environment": {"database": {"uri": database}}}))
    listed = LazyCommand("tests.exercises.command.daemons:daemons", daemons.get_short_help_str())
    queuectl = LazyGroup("queuectl", lazy={**all_commands(), "daemons": listed})
    found = CliRunner().invoke(queuectl, ["daemons", "-c", str(config)])
    assert (found.exit_code, found.stdout.split()) == (0, ["PROGRAM", "HOST", "VERSION"])
    assert "Show the daemons that run." in CliRunner().invoke(queuectl, ["--help"]).stdout
