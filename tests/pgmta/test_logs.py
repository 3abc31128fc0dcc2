"""The log."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

SPEAKING = """
import os
from pgmta.config.environment import Log
from pgmta.logs import configure, get

configure(Log(), daemon="test")
get("part").warning("away", reason="refused\\n\\tIs it running?\\nHINT:  no\\x1b[2J\\n")
problems = ["a.yaml:1: 'x' is no duration", "b.yaml:2: 'y'\\x1b"]
get("part").error("kept", problems=problems, names=["w"])
reader, writer = os.pipe()
os.dup2(writer, 2)
os.close(writer)
os.close(reader)
for _ in range(3):
    get("part").warning("lost")
print("on")
"""


def test_a_reason_comes_in_one_line_and_a_log_that_nobody_reads_stops_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SPEAKING], capture_output=True, check=True, text=True
    )
    assert done.stderr.count("\n") == 2
    assert "reason='refused Is it running? HINT:  no\ufffd[2J'" in done.stderr
    assert "names=w " in done.stderr
    assert "problems=\"a.yaml:1: 'x' is no duration; b.yaml:2: 'y'\ufffd\"" in done.stderr
    assert done.stdout == "on\n"


LIBRARY = """
import logging
from pgmta.config.environment import Log
from pgmta.logs import configure

configure(Log(format="json"), daemon="test")
try:
    1 / 0
except ZeroDivisionError:
    logging.getLogger("asyncio").exception("a callback of %s", "x\\ny")
logging.getLogger("mail.log").warning("a command")
"""


def test_a_line_of_a_library_has_the_format_of_the_log() -> None:
    done = subprocess.run([sys.executable, "-c", LIBRARY], capture_output=True, check=True)
    (line,) = done.stderr.splitlines()
    found = json.loads(line)
    assert found["event"] == "a callback of x\ny"
    assert (found["part"], found["daemon"], found["level"]) == ("asyncio", "test", "error")
    assert found["exception"].endswith("ZeroDivisionError: division by zero")


KEPT_OFF = """
from pgmta.logs import get, keep_off_stdout

log = get("part")
if {before}:
    log.warning("before")
keep_off_stdout()
log.warning("after")
get("other").warning("after")
"""


@pytest.mark.parametrize("before", [False, True])
def test_lines_of_a_command_go_to_stderr_whether_or_not_there_was_a_line(before: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KEPT_OFF.format(before=before)],
        capture_output=True, check=True, text=True,
    )  # fmt: skip
    assert (done.stdout.count("before"), done.stdout.count("after")) == (before, 0)
    assert done.stderr.count("after") == 2
