"""The plan of the master, and the process that reads it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pgmta.config.loader import load
from pgmta.errors import ConfigError
from smtpd.config import SmtpdConfig
from smtpd.process.plan import make_plan, parse_plan, write_plan
from smtpd.process.plan_process import PlanProcess
from tests.support.waiting import until

FILE = """
listen:
  - {address: 127.0.0.1, port: 2525, role: submission}
  - {address: 0.0.0.0, port: 2526}
  - {socket: /run/site/smtpd.sock}
metrics: {listen: "127.0.0.1:9101"}
maildrop: {directory: drop}
"""
PROGRAM = """
import sys
from pgmta import logs
from smtpd.process import master
from smtpd.process.plan import LogChoice
logs.configure(LogChoice("info", "text"), daemon="smtpd")
print("loaded:", *(name for name in sys.argv[1:] if name in sys.modules))
"""
HEAVY = ("pydantic", "psycopg", "click", "yaml", "rich", "cryptography", "aiohttp", "uvloop")


def written(path: Path) -> bytes:
    read, write = os.pipe()
    try:
        write_plan(write, make_plan(path, load(path, SmtpdConfig), ["open"], attached=True))
    except ConfigError as error:
        write_plan(write, error)
    with os.fdopen(read, "rb") as pipe:
        return pipe.read()


def test_a_plan_is_the_same_on_the_other_side(tmp_path: Path) -> None:
    path = tmp_path / "smtpd.yaml"
    path.write_text(FILE)
    config = load(path, SmtpdConfig)
    plan = parse_plan(written(path))
    assert plan == make_plan(path, config, ["open"], attached=True)
    assert [at.port for at in plan.listen][:2] == [2525, 2526]
    assert plan.listen[2].socket == "/run/site/smtpd.sock"
    assert plan.metrics == "127.0.0.1:9101"
    assert plan.maildrop.directory == str(tmp_path / "drop")
    assert plan.maildrop.server == "127.0.0.1:2526"  # a submission takes no mail without a login


def test_the_mistakes_of_a_file_are_said_instead(tmp_path: Path) -> None:
    path = tmp_path / "smtpd.yaml"
    path.write_text("processes: none\n")
    with pytest.raises(ConfigError) as caught:
        parse_plan(written(path))
    assert str(caught.value).startswith(f"{path}:1: processes: ")


def test_no_plan_after_the_help_or_a_signal(tmp_path: Path) -> None:
    with PlanProcess(["run", "--help"], lambda: False) as process:
        assert (process.read(), process.status) == (None, 0)
    with PlanProcess(["reread", "-c", str(tmp_path / "missing")], lambda: True) as process:
        assert process.read() is None
    until(lambda: process.status != 0)


def test_the_master_imports_little() -> None:
    command = [sys.executable, "-c", PROGRAM, *HEAVY]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "loaded:\n"
