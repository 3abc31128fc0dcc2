"""Checks of the configuration files, their certificates, and the disks of this host."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from queued.cli.doctor.diagnosis import Check, Diagnosis, error, unknown, warning

_PATIENCE = 60.0  # seconds for `smtpd check`
_LEAST_SHARE = 0.1
_LEAST = 2 << 30  # octets
_FOR_OTHERS = 0o007


class HostChecks:
    """Checks of this host; `config` is queued.yaml, and `folders` are those that grow."""

    def __init__(self, config: Path, smtpd: Path, folders: list[Path]) -> None:
        self._config = config
        self._smtpd = smtpd
        self._folders = folders

    def all(self) -> dict[str, Check]:
        """Return the checks by name."""
        checks: dict[str, Check] = {"disk": self.disk, "queued.yaml": self.queued_config}
        if self._smtpd.exists():
            checks["smtpd.yaml"] = self.smtpd_config
        return checks

    def disk(self) -> Iterator[Diagnosis]:
        """Look how much room the disks have; only folders of this host are known."""
        for folder in self._folders:
            there = next((each for each in (folder, *folder.parents) if each.exists()), None)
            if not there:
                continue
            room = os.statvfs(there)
            free, size = room.f_bavail * room.f_frsize, room.f_blocks * room.f_frsize
            if free < _LEAST and free < _LEAST_SHARE * size:
                yield error(
                    "disk",
                    f"{folder} has room for {free >> 20} MB: without room PostgreSQL takes no mail",
                    "make room, or give the file system more",
                )
            elif room.f_files and room.f_favail < 0.01 * room.f_files:
                yield error("disk", f"{folder} has few inodes left", "remove small files there")

    def queued_config(self) -> Iterator[Diagnosis]:
        """Run `queued check`."""
        yield from self._checked("queued", self._config)

    def smtpd_config(self) -> Iterator[Diagnosis]:
        """Run `smtpd check`, which also reads the certificates."""
        yield from self._checked("smtpd", self._smtpd)

    def _checked(self, program: str, path: Path) -> Iterator[Diagnosis]:
        name = f"{program}.yaml"
        command = [sys.executable, "-P", "-m", program, "check", "-c", str(path)]
        try:
            done = subprocess.run(  # noqa: S603
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                timeout=_PATIENCE, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            yield unknown(name, f"`{program} check` took more than {_PATIENCE:.0f} s")
            return
        remedy = f"mend the file; `{program} check -c {path}` looks again"
        for line in done.stderr.splitlines():
            text = line.strip()
            if text.startswith("warning: "):
                yield warning(name, text.removeprefix("warning: "), remedy)
            elif text and done.returncode:
                yield error(name, text.removeprefix("error: "), remedy)
        if done.returncode and not done.stderr.strip():
            yield error(name, f"`{program} check` ended with {done.returncode}", remedy)
