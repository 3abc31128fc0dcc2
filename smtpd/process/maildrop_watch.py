"""Mail that the command `sendmail` has kept while smtpd was away."""

from __future__ import annotations

import asyncio
import os
import pwd
import stat
import subprocess
import sys
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any

from pgmta.logs import get
from smtpd.process.plan import MasterPlan

# all users may add files; only the owner may list them, and remove those of others
_FOLDER_MODE = 0o1733
_OPEN_TO_ALL = stat.S_IWOTH | stat.S_ISVTX
_LOOK_INTERVAL_S = 10.0
_MAX_ROUND_S = 3600.0

log = get("maildrop")


class MaildropWatch:
    """Runs `sendmail -q` as a separate process while messages wait.

    A broken file or a slow database thus harms no session. The process runs as `user`.
    """

    def __init__(self, plan: MasterPlan) -> None:
        drop = plan.maildrop
        self._directory = Path(drop.directory) if drop.directory else None
        # by default only root may be able to use the folder
        self._tell = log.warning if drop.named else log.debug
        self._user = plan.user if os.getuid() == 0 else None
        self._server = drop.server

    async def run(self) -> None:
        """Look for messages again and again, until cancelled."""
        if not self._directory or not self._make(self._directory):
            return
        if not self._server:
            log.warning("waiting mail stays: no listener takes it",
                        directory=str(self._directory))  # fmt: skip
            return
        while True:
            if self._waiting(self._directory):
                try:
                    await self._flush()
                except OSError as error:
                    log.warning("can't take waiting mail", reason=str(error))
            await asyncio.sleep(_LOOK_INTERVAL_S)

    def _identity(self) -> dict[str, Any]:
        """Return the options with which a process runs as `user`, without the groups of root."""
        if not self._user:
            return {}
        entry = pwd.getpwnam(self._user)
        groups = os.getgrouplist(entry.pw_name, entry.pw_gid)
        return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": groups}

    def _make(self, directory: Path) -> bool:
        """Make the directory if it is missing; return whether it can be used."""
        if directory.is_dir():
            if directory.stat().st_mode & _OPEN_TO_ALL == stat.S_IWOTH:
                log.warning("users can remove the waiting mail of others: use mode 1733",
                            directory=str(directory))  # fmt: skip
            usable = os.access(directory, os.R_OK | os.W_OK | os.X_OK)
            if not usable:
                self._tell("can't use the directory for waiting mail", directory=str(directory))
            return usable and self._owns(directory)
        try:
            directory.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            directory.mkdir()
            if self._user:
                entry = pwd.getpwnam(self._user)
                os.chown(directory, entry.pw_uid, entry.pw_gid)
            directory.chmod(_FOLDER_MODE)
        except (OSError, KeyError) as error:
            self._tell("no directory for waiting mail", directory=str(directory), reason=str(error))
            return False
        return True

    def _owns(self, directory: Path) -> bool:
        """Return whether the process may remove what users put there, so that it goes once."""
        uid = pwd.getpwnam(self._user).pw_uid if self._user else os.getuid()
        found = directory.stat()
        if uid in (0, found.st_uid) or not found.st_mode & stat.S_ISVTX:
            return True
        log.warning("waiting mail stays: its directory belongs to another user",
                    directory=str(directory))  # fmt: skip
        return False

    def _waiting(self, directory: Path) -> bool:
        try:
            return any(name.endswith(".mail") for name in os.listdir(directory))
        except OSError as error:
            log.warning("can't read waiting mail", directory=str(directory), reason=error.strerror)
            return False

    async def _flush(self) -> None:
        settings = {
            "PGMTA_SENDMAIL_SERVER": self._server,
            "PGMTA_SENDMAIL_DIRECTORY": str(self._directory),
        }
        # subprocess, because uvloop knows no `user`
        process = subprocess.Popen(  # noqa: ASYNC220 - a fork is short
            [sys.executable, "-P", "-m", "smtpd.sendmail", "-q", "-v"], stdin=DEVNULL,
            stdout=DEVNULL, stderr=PIPE, env={**os.environ, **settings},
            **self._identity())  # fmt: skip
        try:
            _, errors = await asyncio.to_thread(process.communicate, timeout=_MAX_ROUND_S)
        except subprocess.TimeoutExpired:
            log.warning("waiting mail takes too long")
            return
        finally:
            process.kill()  # without effect if the process has ended
        self._log(errors)

    def _log(self, errors: bytes) -> None:
        for line in errors.decode("utf-8", "replace").split("\n"):
            if line.startswith("sendmail: "):
                log.info("waiting mail", result=line.removeprefix("sendmail: "))
