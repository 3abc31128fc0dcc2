"""Priorities for the journal, and the journal of systemd itself, if the machine can run one."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.waiting import until

SPEAKING = """
import logging, sys
from pgmta.config.environment import Log
from pgmta.logs import configure, get

configure(Log(format=sys.argv[1], level="debug"), daemon="test")
get("part").info("plain")
get("part").debug("small")
get("part").warning("odd")
get("part").critical("dire")
try:
    1 / 0
except ArithmeticError:
    get("part").exception("wrong")
logging.getLogger("library").error("theirs")
"""
JOURNALD = Path("/usr/lib/systemd/systemd-journald")
HEADER = "\n\n6\n1\n0\n0\n0\n"  # identifier, unit, info, prefixes count, nothing is passed on


def speak(stderr: int, form: str, named: str) -> None:
    subprocess.run(
        [sys.executable, "-c", SPEAKING, form],
        stderr=stderr, check=True, env=os.environ | {"JOURNAL_STREAM": named},
    )  # fmt: skip


def name_of(number: int) -> str:
    status = os.fstat(number)
    return f"{status.st_dev}:{status.st_ino}"


@pytest.mark.parametrize("form", ["text", "json"])
def test_each_line_has_its_priority(form: str, tmp_path: Path) -> None:
    with (tmp_path / "log").open("w+") as log:
        speak(log.fileno(), form, name_of(log.fileno()))
        log.seek(0)
        lines = log.read().splitlines()
    words = {"plain": "", "small": "<7>", "odd": "<4>", "dire": "<2>", "wrong": "<3>"}
    words |= {"theirs": "<3>"} | ({"Traceback": "<3>", "1 / 0": "<3>"} if form == "text" else {})
    for word, mark in words.items():
        [line] = [each for each in lines if word in each][:1]
        assert (line[:3] if line.startswith("<") else "") == mark


def test_errors_of_a_start_have_priority_too(tmp_path: Path) -> None:
    """And no other stderr than the journal's gets one."""
    for place in ("journal", "1:2"):
        with (tmp_path / "log").open("w+") as log:
            stream = name_of(log.fileno()) if place == "journal" else place
            subprocess.run(
                [sys.executable, "-m", "smtpd", "run", "--wrong"], stderr=log, check=False,
                env=os.environ | {"JOURNAL_STREAM": stream},
            )  # fmt: skip
            log.seek(0)
            mark = "<3>" if place == "journal" else ""
            assert f"\n{mark}error: " in f"\n{log.read()}"


@pytest.fixture
def journal() -> Iterator[Path]:
    """The folder of a second journald, with its socket `io.systemd.journal/stdout`."""
    folder = Path(tempfile.mkdtemp(prefix="pgmta-journal-"))
    for name in ("run", "log"):
        (folder / name).mkdir()
    daemon = subprocess.Popen(
        ["bwrap", "--dev-bind", "/", "/", "--bind", folder / "run", "/run",
         "--bind", folder / "log", "/var/log", "--die-with-parent", "sh", "-c",
         f"mkdir -p /run/systemd/journal; exec {JOURNALD}"],
    )  # fmt: skip
    try:
        place = folder / "run" / "systemd" / "journal" / "stdout"
        until(lambda: place.exists() or daemon.poll() is not None)
        assert daemon.poll() is None
        yield folder
    finally:
        daemon.kill()
        daemon.wait()
        shutil.rmtree(folder)


@pytest.mark.needs("root", "systemd", "bubblewrap")
def test_journalctl_shows_errors_alone(journal: Path) -> None:
    with socket.socket(socket.AF_UNIX) as stream:
        stream.connect(str(journal / "run" / "systemd" / "journal" / "stdout"))
        stream.sendall(HEADER.encode())
        speak(stream.fileno(), "text", name_of(stream.fileno()))
        stream.shutdown(socket.SHUT_RDWR)

    def shown(*options: str) -> str:
        return subprocess.run(
            ["journalctl", "--no-pager", "-o", "cat", "-D", journal / "run" / "log" / "journal",
             *options],
            capture_output=True, text=True, check=False,
        ).stdout  # fmt: skip

    until(lambda: "theirs" in shown())
    errors, all_lines = shown("-p", "err"), shown()
    for word in ("dire", "wrong", "Traceback", "ZeroDivisionError", "theirs"):
        assert word in errors
    for word in ("plain", "odd"):
        assert word not in errors
        assert word in all_lines
    assert "odd" in shown("-p", "warning")
    assert "<3>" not in all_lines
