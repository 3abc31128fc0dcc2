"""The user as which the processes take mail."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import uvloop

from pgmta.postgres.locate import configured
from smtpd.config import SmtpdConfig


def problem(config: SmtpdConfig) -> str:
    """Return why the processes can't become `user`, or nothing. Raises ConfigError."""
    if config.user is None:
        return ""
    try:
        pwd.getpwnam(config.user)
    except KeyError:
        return f"no user of this system is called {config.user!r}"
    if os.geteuid() == 0 and not configured(config.environment):
        return "needs environment.database.uri: the embedded PostgreSQL lets in its own user alone"
    return ""


def give_up(config: SmtpdConfig) -> None:
    """Become `user` for good, if root runs this process. Raises OSError."""
    if config.user is None or os.geteuid() != 0:
        return
    entry = pwd.getpwnam(config.user)
    os.initgroups(entry.pw_name, entry.pw_gid)
    os.setgid(entry.pw_gid)
    os.setuid(entry.pw_uid)
    # libpq looks for its password file in HOME
    os.environ.update(HOME=entry.pw_dir, USER=entry.pw_name, LOGNAME=entry.pw_name)


def shut_out(config: SmtpdConfig) -> str:
    """Return why `user`, which this process is now, can't run smtpd, or nothing.

    Root may run a Python in folders that are closed to others.
    """
    if config.user is None:
        return ""
    for module in (
        os.__file__,
        uvloop.__file__,
        __file__,
    ):  # a file of Python, one of a library, and one of smtpd
        if os.access(module, os.R_OK):
            continue
        closed = [str(path) for path in Path(module).parents if not os.access(path, os.X_OK)]
        return f"{config.user} can't read {module}: no way through {closed[-1] if closed else 'it'}"
    return ""
