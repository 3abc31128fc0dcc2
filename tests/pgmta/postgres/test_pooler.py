"""A connection pooler between pgmta and PostgreSQL is named in words."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from click.testing import CliRunner
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgmta.errors import StoreUnavailable
from pgmta.postgres.link import Link
from pgmta.postgres.operator import connect_operator
from pgmta.store.admin.migrate import migrate
from pgmta.store.queue.partitions import opened, tree
from queued.daemon.queued import main as queued
from smtpd.cli import main as smtpd
from tests.support.pooler import pgbouncer

_KEY_DATA = b"K\0\0\0"
_SOCKET = ".s.PGSQL.{}"


async def tree_of(uri: str) -> None:
    async with opened(uri) as db:
        await tree(db)


async def test_a_pooler_is_refused_in_words(database: str, tmp_path: Path) -> None:
    given = conninfo_to_dict(database)
    host, port = str(given.get("host") or "/var/run/postgresql"), given.get("port") or 5432

    done = asyncio.Event()

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            at = data.find(_KEY_DATA)
            if at >= 0:  # BackendKeyData: length, process, key; a pooler has other numbers
                data = data[: at + 5] + b"\x7f\xff\xff\xfe" + data[at + 9 :]
            writer.write(data)
        writer.close()
        await writer.wait_closed()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if host.startswith("/"):
            server = await asyncio.open_unix_connection(f"{host}/{_SOCKET.format(port)}")
        else:
            server = await asyncio.open_connection(host, int(port))
        await asyncio.gather(pass_on(reader, server[1]), pass_on(server[0], writer))
        done.set()

    folder = Path("/tmp") if len(str(tmp_path)) > 80 else tmp_path
    number = abs(hash(str(tmp_path))) % 50_000 + 10_000
    pooler = await asyncio.start_unix_server(serve, folder / _SOCKET.format(number))
    uri = make_conninfo(database, host=str(folder), port=number, requirepeer="", sslmode="disable")
    link = Link(uri, "test")
    with pytest.raises(StoreUnavailable, match="connection pooler"):
        await link.run("SELECT 1")
    await link.close()
    for command in (connect_operator, tree_of):
        with pytest.raises(StoreUnavailable, match="connection pooler"):
            await command(uri)
    with pytest.raises(StoreUnavailable, match="connection pooler"):
        await asyncio.to_thread(migrate, uri)
    await asyncio.wait_for(done.wait(), 10)
    pooler.close()
    await pooler.wait_closed()


@pytest.mark.needs("pgbouncer")
def test_check_says_what_the_daemons_would(database: str, tmp_path: Path) -> None:
    """Also while another client has the only session of the pool."""
    more: dict[Any, dict[str, Any]] = {
        queued: {"routes": {"*": "127.0.0.1:9"}},
        smtpd: {"listen": [{"address": "127.0.0.1", "port": 2525, "role": "internal"}]},
    }
    with pgbouncer(database) as uri, psycopg.connect(uri) as other:
        other.execute("SELECT 1")
        for command, settings in more.items():
            config = tmp_path / "one.yaml"
            environment = {"hostname": "relay.example", "database": {"uri": uri}}
            config.write_text(yaml.safe_dump({"environment": environment, **settings}))
            began = time.monotonic()
            result = CliRunner().invoke(command, ["check", "-c", str(config)])
            assert "connection pooler" in result.output
            assert result.exit_code == 2
            assert time.monotonic() - began < 30  # it waited for the other client before
