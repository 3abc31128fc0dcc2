"""`queuectl logs` as a process: new entries, a closed pipe, Ctrl-C, a database that goes away."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
import yaml

from tests.support.database import PrivateServer
from tests.support.rows import attempt
from tests.support.waiting import PATIENCE, until

type Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(private_server: PrivateServer, tmp_path: Path) -> Iterator[Start]:
    """Start queuectl logs on a private server."""
    config = tmp_path / "queued.yaml"
    config.write_text(yaml.safe_dump({"environment": {"database": {"uri": private_server.uri}}}))
    started: list[subprocess.Popen[str]] = []

    def run(*words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "queued.cli.queuectl", "logs", "-c", str(config), *words]
        command[1:3] = ["-c", "from queued.cli.queuectl import main; main(prog_name='queuectl')"]
        started.append(
            subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
            )
        )
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.communicate()


def put(uri: str, n: int) -> None:
    with psycopg.connect(uri, autocommit=True) as db:
        db.execute("SET search_path = pgmta")
        attempt(db, n, n, reply="words\x1b[2J")


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline()


@pytest.mark.slow
def test_the_log_is_followed_and_ends_cleanly(start: Start, private_server: PrivateServer) -> None:
    put(private_server.uri, 1)
    process = start()
    first = line(process)
    assert " deferred " in first
    assert first.endswith("1 <s@a.example> r@b.example mx.b.example:25 450 words�[2J\n")
    put(private_server.uri, 2)
    assert " 2 <s@a.example> " in line(process)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=PATIENCE) == ("", "")
    assert process.returncode == 0


@pytest.mark.slow
def test_a_closed_pipe_ends_it_without_an_entry(
    start: Start, private_server: PrivateServer
) -> None:
    put(private_server.uri, 1)
    process = start("--json")
    assert json.loads(line(process))["row_id"] == 1
    assert process.stdout
    process.stdout.close()
    process.stdout = None
    _, errors = process.communicate(timeout=PATIENCE)
    assert errors == ""
    assert process.returncode == 0


@pytest.mark.slow
def test_it_goes_on_when_the_database_is_back(start: Start, private_server: PrivateServer) -> None:
    put(private_server.uri, 1)
    process = start("--csv", "--event", "deferred")
    names = line(process)
    assert names.startswith("ended_at,started_at,event,")
    assert ",1,1,1,1,s@a.example," in line(process)
    private_server.crash()
    assert process.stderr
    assert process.stderr.readline().startswith("warning: the database is away: ")
    private_server.start()
    put(private_server.uri, 2)
    assert ",2,2,1,1,s@a.example," in line(process)
    until(lambda: os.read(process.stderr.fileno(), 4096).endswith(b"is back\n"))  # type: ignore[union-attr]
