"""The embedded server's files and folders: what others have put there is refused, not changed."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import psycopg
import pytest

from pgmta.errors import ServerRefused, StoreUnavailable
from pgmta.postgres.embedded import programs
from pgmta.postgres.embedded.embedded_server import DATABASE, EmbeddedServer
from pgmta.postgres.embedded.folders import make_parents
from pgmta.postgres.embedded.owner import Owner
from tests.support.database import data_folder
from tests.support.waiting import PATIENCE

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, who has another user's rights")
ROLE = "pgmta_smtpd"
Before = Callable[[Path, Path], None]


@pytest.fixture(scope="module")
def far() -> Iterator[EmbeddedServer]:
    """A server that has been stopped; the path of its data is too long for a socket."""
    folder = data_folder()
    server = EmbeddedServer(folder / ("x" * 80))
    server.directory.mkdir()
    server.start()
    server.stop()
    yield server
    server.stop("immediate")
    shutil.rmtree(folder)
    shutil.rmtree(server.sockets, ignore_errors=True)


def open_to_all(path: Path, _: Path) -> None:
    path.mkdir()
    path.chmod(0o777)


def of_another_user(path: Path, _: Path) -> None:
    path.mkdir(0o700)
    os.chown(path, pwd.getpwnam("nobody").pw_uid, -1)


def a_link(path: Path, target: Path) -> None:
    path.symlink_to(target)


def a_file(path: Path, _: Path) -> None:
    path.write_text("x")


def look(path: Path) -> tuple[int, int, int]:
    status = path.lstat()
    return status.st_mode, status.st_uid, status.st_ino


@pytest.mark.parametrize(
    "before", [open_to_all, pytest.param(of_another_user, marks=as_root), a_link, a_file]
)
def test_a_socket_folder_that_others_have_made(
    far: EmbeddedServer, tmp_path: Path, before: Before
) -> None:
    sockets = far.sockets
    assert sockets != far.data
    shutil.rmtree(sockets)
    before(sockets, tmp_path)
    looks = look(sockets), look(tmp_path)
    try:
        with pytest.raises(ServerRefused, match=str(sockets)):
            far.start()
        assert looks == (look(sockets), look(tmp_path))
        assert not far.running()
    finally:
        (sockets.rmdir if sockets.is_dir() and not sockets.is_symlink() else sockets.unlink)()
    far.start()
    assert stat.S_IMODE(sockets.stat().st_mode) == 0o700
    with psycopg.connect(far.uri(DATABASE)) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
    far.stop()


def test_a_stop_spares_another_process_with_the_number_of_a_killed_server(
    far: EmbeddedServer,
) -> None:
    owner = far.data.owner() if os.geteuid() == 0 else None
    with subprocess.Popen(["sleep", "600"], cwd="/", user=owner) as other:
        file = far.data / "postmaster.pid"
        file.write_text(f"{other.pid}\n{far.data}\n0\n5432\n{far.sockets}\n\n0 0\nready   \n")
        try:
            far.stop()
            assert other.poll() is None
        finally:
            file.unlink()
            other.kill()


@as_root
def test_root_without_ptrace_sees_a_server_and_stops_it(far: EmbeddedServer) -> None:
    """As in a container: root may not read the folder of another user's process."""
    script = """
import sys
from functools import partial
from pathlib import Path
from pgmta.postgres.embedded.embedded_server import EmbeddedServer
server = EmbeddedServer(Path(sys.argv[1]))
for step in (server.start, server.stop):
    step()
    print(server.running())
"""
    command = ["setpriv", "--bounding-set=-sys_ptrace", sys.executable, "-c", script]
    done = subprocess.run(
        [*command, str(far.directory)], check=True, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.stdout.split() == ["True", "False"]
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(far.uri(DATABASE))


@as_root
def test_a_client_does_not_talk_to_a_server_of_somebody_else(far: EmbeddedServer) -> None:
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(far.sockets / ".s.PGSQL.5432"))
        other.listen()
        with pytest.raises(psycopg.OperationalError, match="requirepeer"):
            psycopg.connect(far.uri(DATABASE))


@pytest.fixture
def private() -> Iterator[Path]:
    """A folder that only root enters, as /root is, in such a folder; its name needs quotes."""
    folder = Path(tempfile.mkdtemp(prefix="pgmta-test-"))
    inner = folder / "it's a \N{SNOWMAN}"
    inner.mkdir(0o700)
    yield inner
    assert {path.stat().st_mode & 0o777 for path in (folder, inner)} == {0o700}
    shutil.rmtree(folder)


@pytest.mark.slow
@as_root
def test_in_a_folder_that_only_root_enters(private: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The data stay there. The programs are copied once, for servers that start at once too."""
    package = programs._wheel_bin().parents[1]
    (private / "site").symlink_to(package.parent)
    folder = private / "site" / package.name / "pginstall18" / "bin"
    monkeypatch.setattr(programs, "_wheel_bin", lambda: folder)
    monkeypatch.setattr(programs, "COPIES", place := data_folder() / "copies")
    server = EmbeddedServer(private / "var")
    make_parents(server.directory)
    try:
        with ThreadPoolExecutor() as pool:
            folders = {*pool.map(programs.copied, [programs._wheel_bin()] * 2)}
        assert [folder.is_relative_to(copy) for folder in folders for copy in place.iterdir()] == [
            True
        ]
        for path in (place, *place.rglob("*")):
            assert (path.stat().st_uid, path.stat().st_mode & 0o7022) == (0, 0)
        for _ in range(2):
            assert server.start([ROLE])
            with psycopg.connect(server.uri(DATABASE, ROLE)) as connection:
                assert connection.execute("SELECT 1").fetchone() == (1,)
            server.stop("immediate")
        assert server.log.read_text().count("database system is ready") == 2
        assert server.sockets == server.data == private / "var" / "postgres"
        place.chmod(0o777)
        with pytest.raises(ServerRefused, match=f"{place} may be written by other users"):
            server.start()
    finally:
        place.chmod(0o755)
        server.stop("immediate")
        shutil.rmtree(place.parent)


def test_a_folder_that_pg_ctl_cannot_quote(tmp_path: Path) -> None:
    """It would run the command."""
    folder = tmp_path / "$(touch it)"
    with pytest.raises(ServerRefused, match=r"can't work in a folder with \$ in its name"):
        EmbeddedServer(folder).start()


@pytest.mark.parametrize("name", ["owner", "lock", "log"])
def test_no_link_is_followed(far: EmbeddedServer, tmp_path: Path, name: str) -> None:
    path, target = far.directory / f"postgres.{name}", tmp_path / "target"
    target.write_text("x")
    path.unlink(missing_ok=True)
    path.symlink_to(target)
    before = look(target)
    try:
        begin = partial(Owner, far.directory) if name == "owner" else far.start
        with pytest.raises(ServerRefused, match=f"{path}: is a symbolic link"):
            begin()
        assert look(target) == before
    finally:
        path.unlink()


def test_a_file_that_cannot_be_written(far: EmbeddedServer) -> None:
    """As on a full disk."""
    path = far.data / "pg_ident.conf"
    path.write_text("")
    path.chmod(0o400)
    with pytest.raises(StoreUnavailable, match=f"can't add to {path}: .*Permission denied"):
        far.start()
    path.chmod(0o600)
    assert far.start()
    far.stop()


@pytest.mark.slow
def test_an_interrupted_first_start_leaves_nothing_that_counts() -> None:
    folder = data_folder()
    left = folder / "postgres.new"
    left.mkdir()
    (left / "PG_VERSION").write_text("18\n")
    server = EmbeddedServer(folder)
    try:
        assert not server.exists()
        assert server.start()
        assert not left.exists()
        assert not server.start()
    finally:
        server.stop("immediate")
        shutil.rmtree(folder)
