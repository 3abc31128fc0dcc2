"""Installations: a wheel, an sdist, the editable one and a checkout work."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import pytest
from psycopg.pq import Conninfo

from pgmta.postgres.embedded.embedded_server import EmbeddedServer
from pgmta.store.schema import TOPICS, migrations
from tests.support.daemons import ROOT
from tests.support.database import data_folder
from tests.support.waiting import PATIENCE, free_port

BUILD = "import sys, hatchling.build as b; print(getattr(b, 'build_' + sys.argv[1])('out'))"
LIBPQ = {
    option.envvar.decode(): "nonsense" for option in Conninfo.get_defaults() if option.envvar
} | dict.fromkeys(["PGDATA", "PGTZ", "PGDATESTYLE", "PGGEQO", "PGSERVICEFILE"], "nonsense")
ENVIRONMENT = {"PATH": "/usr/bin:/bin", **LIBPQ}  # about another server
VERSION = version("pgmta")
SCRIPTS: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
YAML = ("answers", "queued", "shaping", "smtpd", "web")
SHARED = {
    *(f"man/man1/{command}.1" for command in SCRIPTS),
    *(f"man/man5/{name}.yaml.5" for name in YAML),
    *(f"pgmta/schema/{name}.json" for name in (*YAML, "openapi")),
    *(
        place.format(command)
        for command in SCRIPTS.keys() - {"sendmail", "mailq"}
        for place in (
            "bash-completion/completions/{}",
            "zsh/site-functions/_{}",
            "fish/vendor_completions.d/{}.fish",
        )
    ),
}
"""Man pages, JSON schemas and completion files, below share/."""


@pytest.fixture
def empty() -> Iterator[Path]:
    """A folder with nothing in it, where an embedded server may live; it is ended at last."""
    folder = data_folder()
    yield folder
    EmbeddedServer(folder / "var").stop("immediate")
    shutil.rmtree(folder)


def run(command: list[str | Path], folder: Path, *, status: int = 0) -> tuple[str, str]:
    """Run a command in a folder with nothing of this repository on its path; return its output.

    Its configuration is in the folder: /etc/pgmta of this machine does not count.
    """
    done = subprocess.run(
        command, cwd=folder, env={**ENVIRONMENT, "PGMTA_CONFIG": str(folder)},
        capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == status, done.stderr
    return done.stdout, done.stderr


def tree(folder: Path) -> Path:
    """Copy what belongs to the repository."""
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split("\0")  # fmt: skip
    for name in filter(None, names):
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def build(kind: str, folder: Path) -> Path:
    """Build a `wheel` or an `sdist` of the source tree in `folder`."""
    stdout, _ = run([sys.executable, "-c", BUILD, kind], folder)
    return folder / "out" / stdout.split()[-1]


def install(wheel: Path, folder: Path) -> Path:
    """Install a wheel into a new virtual environment; return the folder of its commands.

    A .pth file lends it the libraries of this environment, whose pgmta comes after its own.
    """
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    pip: list[str | Path] = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "--python",
        python,
    ]
    run([*pip, "install", "-q", "--no-deps", "--no-index", wheel], folder)
    site = Path(
        run([python, "-c", "import sysconfig as s; print(s.get_path('purelib'))"], folder)[
            0
        ].strip()
    )
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    stdout, _ = run(
        [python, "-c", "import pgmta; print(pgmta.__file__, pgmta.__version__)"], folder
    )
    assert stdout.split() == [str(site / "pgmta" / "__init__.py"), VERSION]
    return folder / "bin"


@contextmanager
def with_database(folder: Path, commands: Path) -> Iterator[None]:
    """Have the embedded server of a folder run."""
    owner = subprocess.Popen(
        [commands / "queuectl", "database", "run", "-c", "queued.yaml"],
        cwd=folder, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert owner.stdout
    with owner.stdout as stdout:
        assert stdout.readline().startswith(f"PostgreSQL in {folder}/var/postgres: ")
    try:
        yield
    finally:
        owner.terminate()
        assert owner.wait(PATIENCE) == 0


def names_itself(empty: Path, commands: Path) -> None:
    """Check that each command of the wheel says its version, also from a folder without pgmta."""
    assert {"smtpd", "queued", "queuectl", "sendmail", "quarantine-retention"} < set(SCRIPTS)
    for command in SCRIPTS:
        assert run([commands / command, "--version"], empty)[0] == f"{command} (pgmta) {VERSION}\n"
        assert "sage: " in run([commands / command, "--help"], empty)[0]
    retention: list[str | Path] = [
        commands / "quarantine-retention",
        "suspects",
        "--older",
        "30d",
        "-c",
        "queued.yaml",
    ]
    with with_database(empty, commands):
        assert run(retention, empty)[0] == "deleted 0 rows of quarantine suspects\n"


def works_in(empty: Path, commands: Path) -> None:
    """Check that the commands do their work in a folder that has nothing of the repository."""
    for command in ("smtpd", "queued"):
        _, stderr = run([commands / command, "check"], empty, status=2)
        place = empty / f"{command}.yaml"
        assert f"error: there is no {place} (PGMTA_CONFIG): give -c FILE\n" in stderr
        place.write_text("")
    _, stderr = run([commands / "queuectl", "database", "migrate"], empty, status=1)
    assert f"`queuectl database run --directory {empty}/var`" in stderr
    with with_database(empty, commands):
        stdout, _ = run([commands / "queuectl", "database", "migrate"], empty)
        # behind them it says what search_path the database has now
        assert stdout.splitlines()[:-1] == [f"applied {name}" for name in migrations()]
        for command in ("smtpd", "queued"):
            stdout, _ = run([commands / command, "check", "-c", f"{command}.yaml"], empty)
            assert stdout == f"{command}.yaml: ok\n"
        for name, place in (("queued.yaml", empty), (empty / "queued.yaml", Path("/"))):
            assert run([commands / "queuectl", "list", "-c", name], place)[0].startswith("ID")


def greets(empty: Path, commands: Path) -> None:
    """Check that `queuectl up` runs the relay with the queued.yaml that is shipped."""
    port = free_port()
    (empty / "listen.yaml").write_text(f"listen: [{{address: 127.0.0.1, port: {port}}}]\n")
    ports = ["--port", str(port), "--sink-port", str(free_port()), "--page-port", str(free_port())]
    child = subprocess.Popen(
        [commands / "queuectl", "up", "--smtpd", "listen.yaml", *ports],
        cwd=empty, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert child.stdout
        lines = []
        for line in child.stdout:
            lines.append(line)
            if "Ctrl-C" in line:
                break
        assert [line.split()[0] for line in lines[:4]] == ["database", "smtpd", "queued", "sink"]
    finally:
        child.send_signal(signal.SIGINT)
        child.communicate(timeout=PATIENCE)
    assert child.returncode == 0


@pytest.mark.slow
def test_a_wheel_in_an_empty_folder(tmp_path: Path, empty: Path) -> None:
    commands = install(build("wheel", tree(tmp_path / "tree")), tmp_path / "venv")
    works_in(empty, commands)
    names_itself(empty, commands)
    for name in (*SHARED, "doc/pgmta/examples/fastapi_shop.py"):
        assert (tmp_path / "venv" / "share" / name).stat().st_size > 0
    greets(empty, commands)


@pytest.mark.slow
def test_the_editable_installation_in_an_empty_folder(empty: Path) -> None:
    commands = Path(sys.executable).parent
    works_in(empty, commands)
    script = ROOT / "scripts" / "quarantine-retention"
    assert run([script, "--version"], empty)[0] == f"quarantine-retention (pgmta) {VERSION}\n"
    with with_database(empty, commands):
        ended = run([script, "suspects", "--older", "30d", "-c", empty / "queued.yaml"], Path("/"))
    assert ended[0] == "deleted 0 rows of quarantine suspects\n"


@pytest.mark.slow
def test_a_wheel_from_an_sdist_is_the_same(tmp_path: Path) -> None:
    source = tree(tmp_path / "tree")
    wheel = build("wheel", source)
    with tarfile.open(build("sdist", source)) as archive:
        archive.extractall(tmp_path, filter="data")
    [unpacked] = tmp_path.glob("pgmta-*")
    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(build("wheel", unpacked)) as other:
        names = one.namelist()
        assert {name: one.read(name) for name in names} == {
            name: other.read(name) for name in other.namelist()
        }
    shared = f"pgmta-{VERSION}.data/data/share/"
    made = {name.removeprefix(shared) for name in names if name.startswith(shared)}
    assert {name for name in made if not name.startswith("doc/")} == SHARED
    assert {f"pgmta/sql/schema/{name}.sql" for name in TOPICS} < set(names)
    assert {
        "pgmta/py.typed",
        "pgmta/etc/queued.yaml",
        "pgmta/etc/bounces/en.txt",
        "pgmta/etc/shaping.yaml",
        "pgmta/etc/dev/smtpd.yaml",
        "pgmta/etc/systemd/smtpd.service",
    } < set(names)
    assert f"pgmta-{VERSION}.dist-info/licenses/LICENSE" in names
    assert not [name for name in names if name.startswith(("sql/", "etc/", "tests/", "bench/"))]


def test_a_checkout_that_is_not_installed(tmp_path: Path) -> None:
    source = tree(tmp_path / "tree")
    names = "import sys; sys.path.insert(0, '.'); from pgmta.store.schema import migrations"
    stdout, _ = run([sys.executable, "-P", "-c", f"{names}; print(*migrations())"], source)
    assert stdout.split() == list(migrations())
