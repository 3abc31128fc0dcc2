"""A feature is a folder and a name: it adds a table, a duty, a loop, a command, a page and keys."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psycopg
import pytest
import yaml

from pgmta.features import FEATURES
from tests.support.copies import Copy
from tests.support.database import fresh_database
from tests.support.waiting import free_port, until


@pytest.fixture
def bare_database(server: str) -> Iterator[str]:
    """URI of a database without any schema."""
    with fresh_database(server) as uri:
        yield uri


def answer(port: int, path: str) -> bytes:
    """Return the body of an answer; nothing if there is no server, or if it refuses."""
    try:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as found:
            return bytes(found.read())
    except OSError:
        return b""


@pytest.mark.slow
def test_a_folder_and_a_name_add_a_feature(bare_database: str, tmp_path: Path) -> None:
    copy = Copy(tmp_path / "copy", FEATURES, [Path(__file__).parent / "notes"])
    config = tmp_path / "queued.yaml"

    def configure(**more: Any) -> list[str]:
        database = {"database": {"uri": bare_database}, "directory": str(tmp_path)}
        config.write_text(yaml.safe_dump({"environment": database} | more))
        return ["-c", str(config)]

    done = copy.queuectl("database", "migrate", *configure())
    assert done.returncode == 0, done.stderr
    assert "List the notes." in copy.queuectl("--help").stdout

    for more, reason in (
        ({"notes": {"txt": "x"}}, "notes.txt: unknown key; did you mean 'text'?"),
        ({"retention": {"notes": "59s"}}, "retention.notes: is too short for notes.text"),
    ):
        done = copy.run("-m", "queued", "check", *configure(**more))
        assert done.returncode == 2
        assert reason in done.stderr

    place = configure(notes={"text": "written"}, retention={"notes": "2d", "attempts": "2d"})
    command = [sys.executable, "-m", "queued", "run", *place]
    with (
        psycopg.connect(bare_database, autocommit=True) as db,
        subprocess.Popen(command, env=copy.environment, cwd=copy.folder) as queued,
    ):
        try:
            until(lambda: db.execute("SELECT count(*) FROM pgmta.notes").fetchone() == (2,))
        finally:
            queued.terminate()
    done = copy.queuectl("notes", *place)
    assert (done.returncode, done.stdout) == (0, "begun\nwritten\n"), done.stderr

    port = free_port()
    listen = {"listen": [{"port": port}], "notes": {"title": "Notes"}}
    configure(**listen)
    command = [sys.executable, "-m", "queued", "web", *place]
    with subprocess.Popen(command, env=copy.environment, cwd=copy.folder) as web:
        try:
            until(lambda: answer(port, "/ready"))
            assert answer(port, "/notes") == b"Notes\nbegun\nwritten"
        finally:
            web.terminate()
