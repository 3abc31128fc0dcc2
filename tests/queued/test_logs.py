"""The log."""

from __future__ import annotations

import subprocess
import sys

LOSING = """
import os
from queued.config.environment import Log
from queued.logs import configure, get

configure(Log(), daemon="test")
get("part").warning("heard")
reader, writer = os.pipe()
os.dup2(writer, 2)
os.close(writer)
os.close(reader)
for _ in range(3):
    get("part").warning("lost")
print("on")
"""


def test_a_log_that_nobody_reads_any_more_stops_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOSING], capture_output=True, check=True, text=True
    )
    assert "heard" in done.stderr
    assert done.stdout == "on\n"
