"""The settings of `sendmail`: where smtpd listens, where mail waits."""

from __future__ import annotations

import os
import socket

from smtpd.sendmail.exits import CONFIG, Exit

SETTINGS_FILE = "/etc/pgmta/sendmail.conf"
"""The file with the settings, unless the environment names another."""
_MAILNAME_FILE = "/etc/mailname"  # has the name of this host in addresses, on Debian


class Settings:
    """Lines `key = value` of the file; each has a default."""

    def __init__(self) -> None:
        self.server = "127.0.0.1:2525"
        """HOST:PORT, [ADDRESS]:PORT, or the path of a Unix socket."""
        self.directory = "/var/spool/pgmta/maildrop"
        """Mail waits here while smtpd is away."""
        self.domain = ""
        """Domain of addresses without one. Default: /etc/mailname, or the name of this host."""
        self.timeout = "60"
        """Seconds for each reply of smtpd."""

    @property
    def seconds(self) -> float:
        """The time for a reply of smtpd, in seconds."""
        return float(self.timeout)


def read() -> Settings:
    """Return the settings. Raises Exit with code 78 and names file, line and key.

    The environment may set server and directory, too.
    """
    path = _path()
    settings = Settings()
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().split("\n")
    except FileNotFoundError:
        lines = []
    except (OSError, UnicodeDecodeError) as error:
        raise Exit(CONFIG, f"can't read {path}: {error}") from None
    for number, line in enumerate(lines, 1):
        text = line.split("#")[0].strip()
        if not text:
            continue
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals or key not in vars(settings):
            known = ", ".join(vars(settings))
            raise Exit(CONFIG, f"{path}, line {number}: {key!r} is no setting; there are {known}")
        setattr(settings, key, value)
    settings.server = os.environ.get("PGMTA_SENDMAIL_SERVER", settings.server)
    settings.directory = os.environ.get("PGMTA_SENDMAIL_DIRECTORY", settings.directory)
    _check(path, settings)
    return settings


def _path() -> str:
    """Return PGMTA_SENDMAIL_CONF, else the file in the folder PGMTA_CONFIG, else SETTINGS_FILE.

    The current folder does not count: a program may run in one that belongs to another user.
    """
    if named := os.environ.get("PGMTA_SENDMAIL_CONF"):
        return named
    found = os.path.join(os.environ.get("PGMTA_CONFIG", ""), os.path.basename(SETTINGS_FILE))
    return found if os.path.isabs(found) and os.path.exists(found) else SETTINGS_FILE


def _check(path: str, settings: Settings) -> None:
    try:
        wrong = not 0 < settings.seconds < 86400
    except ValueError:
        wrong = True
    if wrong:
        raise Exit(CONFIG, f"{path}: timeout = {settings.timeout}: expected seconds")
    host, _, port = settings.server.rpartition(":")
    if not settings.server.startswith("/") and not (host and port.isascii() and port.isdigit()):
        raise Exit(CONFIG, f"{path}: server = {settings.server}: expected HOST:PORT or a path")
    if not settings.domain:
        settings.domain = _host_name()


def _host_name() -> str:
    try:
        with open(_MAILNAME_FILE, encoding="ascii") as file:
            if name := file.readline().strip():
                return name
    except (OSError, UnicodeDecodeError):
        pass
    return socket.gethostname()  # not getfqdn, which asks name servers
