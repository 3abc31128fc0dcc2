"""Checks of the configuration files, their certificates, and the disks of this host."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import psycopg

from pgmta.store.admin.examination import Examination
from queued.cli.doctor.diagnosis import Check, Diagnosis, error, unknown, warning

_CHECK_TIMEOUT_S = 60.0  # for `smtpd check`
_MIN_FREE_SHARE = 0.1
_MIN_FREE_OCTETS = 2 << 30


class HostChecks:
    """Checks of this host; `config` is queued.yaml, and `folders` are those that grow.

    Without `own_login` the login of the database is not that of a daemon, but of an operator.
    """

    def __init__(
        self,
        config: Path,
        smtpd: Path,
        folders: list[Path],
        examination: Examination | None = None,
        *,
        own_login: bool = True,
    ) -> None:
        self._config = config
        self._smtpd = smtpd
        self._folders = folders
        self._examination = examination
        self._own_login = own_login

    def all(self) -> dict[str, Check]:
        """Return the checks by name."""
        checks: dict[str, Check] = {"disk": self.disk}
        if self._examination:
            checks["server disk"] = self.server_disk
        checks |= {"queued.yaml": self.queued_config}
        if self._smtpd.exists():
            checks["smtpd.yaml"] = self.smtpd_config
        return checks

    async def disk(self) -> AsyncIterator[Diagnosis]:
        """Look how much room the folders of this host have."""
        for folder in self._folders:
            there = next((each for each in (folder, *folder.parents) if each.exists()), None)
            if there:
                for each in _room("disk", folder, os.statvfs(there)):
                    yield each

    async def server_disk(self) -> AsyncIterator[Diagnosis]:
        """Look how much room the file systems of the server have. Raises psycopg.Error.

        Elsewhere it is known only whether the server can still write, by 1 MB that is taken back.
        """
        examination = self._examination
        if not examination:
            return
        try:
            await examination.write()
        except psycopg.errors.DiskFull as fault:
            yield error(
                "server disk",
                f"the server has no room: {fault.diag.message_primary}",
                "make room there, or give the file system more",
            )
            return
        except psycopg.Error:
            pass  # the login may lack the right to make a temporary table
        if not _runs_here(examination.backend):
            where = "the server runs on another host: how much room it has is not known here"
            yield unknown("server disk", where, "ask there: `df` of its data directory")
            return
        places = [Path(row["place"]) for row in await examination.ask("places")]
        with suppress(OSError):  # raised if another user owns it
            places.append(Path(f"/proc/{examination.backend}/cwd").readlink())
        places = list(dict.fromkeys(places))
        for place in (*places, *(each / "pg_wal" for each in places)):
            with suppress(FileNotFoundError):  # a tablespace has no WAL
                try:
                    for each in _room("server disk", place, os.statvfs(place)):
                        yield each
                except PermissionError:
                    yield unknown(
                        "server disk", f"{place} may not be looked at", "run doctor as root"
                    )
        if not places:
            yield unknown(
                "server disk",
                "this login may not know where the server has its files",
                "a superuser runs `GRANT pg_monitor TO` this login, or run doctor as root",
            )

    async def queued_config(self) -> AsyncIterator[Diagnosis]:
        """Run `queued check`."""
        for each in self._checked("queued", self._config):
            yield each

    async def smtpd_config(self) -> AsyncIterator[Diagnosis]:
        """Run `smtpd check`, which also reads the certificates."""
        for each in self._checked("smtpd", self._smtpd):
            yield each

    def _checked(self, program: str, path: Path) -> Iterator[Diagnosis]:
        name = f"{program}.yaml"
        command = [sys.executable, "-P", "-m", program, "check", "-c", str(path)]
        if not self._own_login:
            command.append("--any-login")
        try:
            done = subprocess.run(  # noqa: S603
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                timeout=_CHECK_TIMEOUT_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            yield unknown(name, f"`{program} check` took more than {_CHECK_TIMEOUT_S:.0f} s")
            return
        remedy = f"mend the file; `{program} check -c {path}` looks again"
        for line in done.stderr.splitlines():
            text = line.strip()
            if "the database was not checked" in text:
                continue  # doctor itself looks at the database
            if text.startswith("warning: "):
                yield warning(name, text.removeprefix("warning: "), remedy)
            elif text and done.returncode:
                yield error(name, text.removeprefix("error: "), remedy)
        if done.returncode and not done.stderr.strip():
            yield error(name, f"`{program} check` ended with {done.returncode}", remedy)


def _room(check: str, folder: Path, room: os.statvfs_result) -> Iterator[Diagnosis]:
    """Judge the room that a file system has for a folder."""
    free, size = room.f_bavail * room.f_frsize, room.f_blocks * room.f_frsize
    if free < _MIN_FREE_OCTETS and free < _MIN_FREE_SHARE * size:
        yield error(
            check,
            f"{folder} has room for {free >> 20} MB: without room PostgreSQL takes no mail",
            "make room, or give the file system more",
        )
    elif room.f_files and room.f_favail < 0.01 * room.f_files:
        yield error(check, f"{folder} has few inodes left", "remove small files there")


def _runs_here(backend: int) -> bool:
    """Return whether a process of this number on this host is one of PostgreSQL.

    A server in a container has numbers of its own, and its paths mean nothing here.
    """
    try:
        return Path(f"/proc/{backend}/cmdline").read_bytes().startswith(b"postgres:")
    except OSError:
        return False
