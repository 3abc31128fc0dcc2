"""The user as which the processes take mail."""

from __future__ import annotations

import os
import pwd

from smtpd.config import SmtpdConfig


def problem(config: SmtpdConfig) -> str:
    """Return why the processes can't become `user`, or nothing."""
    if config.user is None:
        return ""
    try:
        pwd.getpwnam(config.user)
    except KeyError:
        return f"no user of this system is called {config.user!r}"
    if os.geteuid() == 0 and not config.environment.database.uri:
        return "needs environment.database.uri: the embedded PostgreSQL would belong to root"
    return ""


def give_up(config: SmtpdConfig) -> None:
    """Become `user` for good, if root runs this process. Raises OSError."""
    if config.user is None or os.geteuid() != 0:
        return
    entry = pwd.getpwnam(config.user)
    os.initgroups(entry.pw_name, entry.pw_gid)
    os.setgid(entry.pw_gid)
    os.setuid(entry.pw_uid)
    # libpq looks for its password file there
    os.environ.update(HOME=entry.pw_dir, USER=entry.pw_name, LOGNAME=entry.pw_name)
