"""docs/operate/backup.md: its commands restore a queue, and its table says what goes out again."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgmta.postgres.embedded.programs import tool
from tests.support.daemons import ROOT
from tests.support.system import System
from tests.support.waiting import until

PAGE = (ROOT / "docs" / "operate" / "backup.md").read_text(encoding="utf-8")


def block(name: str) -> str:
    """The commands of a block."""
    (found,) = re.findall(rf"^<!-- run: {name} -->\n```sh\n(.*?)^```", PAGE, re.M | re.S)
    return str(found)


def programs(server: str) -> str:
    """Folder of pg_dump and pg_restore, of the server's release if the machine has them."""
    with psycopg.connect(server) as db:
        major = db.info.server_version // 10000
    own = Path(f"/usr/lib/postgresql/{major}/bin")
    return str(own if own.is_dir() else Path(tool("pg_dump")).parent)


def shell(commands: str, folder: Path, uri: str) -> str:
    """Run commands in a folder; each has to end well."""
    server = make_conninfo(uri, dbname="postgres")
    path = os.pathsep.join([programs(server), str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["sh", "-e", "-c", commands], cwd=folder, capture_output=True, text=True, check=False,
        env={**os.environ, "PATH": path, "URI": uri, "SERVER": server},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_restored_queue_sends_again_what_waited(system: System, tmp_path: Path) -> None:
    hop = system.hop()
    system.enqueue("before@b.example")
    first = system.queued(hop)
    hop.wait_kept(1)
    system.wait_empty()
    first.stop()
    system.ask("ALTER SEQUENCE message_ids INCREMENT 1 RESTART 1000042")
    system.enqueue("known@b.example")
    system.enqueue("waits@b.example")
    shell(block("backup"), tmp_path, system.uri)
    second = system.queued(hop)
    hop.wait_kept(3)
    system.enqueue("after@b.example")
    hop.wait_kept(4)
    system.wait_empty()
    second.stop()

    name = conninfo_to_dict(system.uri)["dbname"]
    with psycopg.connect(make_conninfo(system.uri, dbname="postgres"), autocommit=True) as db:
        db.execute(f'DROP DATABASE "{name}"')
    (tmp_path / "queued.yaml").write_text(second.path.read_text())
    said = shell(block("restore"), tmp_path, system.uri)
    assert re.search(r"^hold: 2 rows$", said, re.M), said
    assert re.search(r"^b\.example +2 ", said, re.M), said
    third = system.queued(hop)
    shell(block("restored"), tmp_path, system.uri)
    hop.wait_kept(5)
    system.wait_empty()
    third.stop()
    assert hop.deliveries() == {
        "before@b.example": 1, "known@b.example": 1, "waits@b.example": 2, "after@b.example": 1,
    }  # fmt: skip
    until(lambda: not system.queue())
