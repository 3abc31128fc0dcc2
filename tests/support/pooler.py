"""A database behind pgbouncer, in transaction mode."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict

from tests.support.database import data_folder
from tests.support.waiting import free_port, until


@contextmanager
def pgbouncer(database: str) -> Iterator[str]:
    """URI of the database `shop` there, which has one connection to PostgreSQL for all clients."""
    given = conninfo_to_dict(database)
    folder, port = data_folder(), free_port()
    user = "daemon" if os.geteuid() == 0 else None
    if user and str(given.get("host", "")).startswith("/"):
        user = Path(str(given["host"])).owner()  # no other user reaches the socket
    keys = ("host", "port", "dbname", "user", "password")
    target = " ".join(f"{key}={given[key]}" for key in keys if given.get(key))
    (folder / "ini").write_text(
        f"[databases]\nshop = {target}\n[pgbouncer]\n"
        f"listen_addr = 127.0.0.1\nlisten_port = {port}\n"
        "auth_type = any\npool_mode = transaction\ndefault_pool_size = 1\nunix_socket_dir =\n"
        "ignore_startup_parameters = extra_float_digits\n"
    )
    (folder / "ini").chmod(0o644)
    process = subprocess.Popen(
        ["/usr/sbin/pgbouncer", "-q", str(folder / "ini")],
        user=user,
        group=pwd.getpwnam(user).pw_gid if user else None,
        extra_groups=[] if user else None,
        stderr=subprocess.DEVNULL,
    )
    uri = f"postgresql://127.0.0.1:{port}/shop?user=app"
    try:
        until(lambda: process.poll() is None and _answers(uri))
        yield uri
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _answers(uri: str) -> bool:
    try:
        psycopg.connect(uri).close()
    except psycopg.OperationalError:
        return False
    return True
