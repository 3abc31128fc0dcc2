"""Cron, PHP, mailutils and bsd-mailx by the command `sendmail`, with smtpd stopped meanwhile."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from bench.peer.package import libraries
from bench.peer.room import furnish
from bench.peer.system import Daemon
from tests.clients.site import DOMAIN, Site
from tests.support.daemons import lives
from tests.support.packages import folder, program
from tests.support.waiting import until

Program = Callable[[Site, Path, str], None]
SENDMAIL = Path(sys.executable).parent / "sendmail"


def php(site: Site, sendmail: Path, to: str) -> None:
    """PHP's function mail()."""
    site.run(
        [
            *("php", "-d", f"sendmail_path={sendmail} -t -i", "-r"),
            f'exit(mail("{to}", "hello", "text of {to}\\n.\\nend\\n") ? 0 : 1);',
        ]
    )


def mailutils(site: Site, sendmail: Path, to: str) -> None:
    """`mail` of GNU mailutils."""
    command = ["mail.mailutils", "-E", f'set sendmail="sendmail://{sendmail}"', "-s", "hello", to]
    site.run(command, f"text of {to}\n")


def bsd_mailx(site: Site, sendmail: Path, to: str) -> None:
    """`mail` of BSD."""
    root = folder() / "bsd-mailx"
    settings = site.file("mailrc", f"set sendmail={sendmail}\n")
    site.run(
        [root / "usr/bin/bsd-mailx", "-n", "-s", "hello", to],
        f"text of {to}\n",
        MAILRC=str(settings),
        LD_LIBRARY_PATH=libraries(root),
    )


def cron(site: Site, sendmail: Path, to: str) -> None:
    """Cron runs a job at its start, and mails its output by /usr/sbin/sendmail."""
    place = site.folder / to
    folders = {at: place / at.strip("/").replace("/", "-") for at in _CRON_FOLDERS}
    for path in folders.values():
        path.mkdir(parents=True)
    (folders["/var/spool/cron"] / "crontabs").mkdir()
    (folders["/etc/cron.d"] / "job").write_text(
        f"MAILTO={to}\n@reboot root echo 'text of {to}'; touch {place}/done\n"
    )
    for name, path in (("cron", Path(program("cron") or "")), ("sendmail", sendmail)):
        copy = folders["/usr/sbin"] / name
        copy.write_bytes(path.read_bytes())
        copy.chmod(0o755)
    room = furnish(place, [], folders=folders)
    daemon = Daemon("cron", room.command(["/usr/sbin/cron", "-f"]), place / "log", {})
    try:
        until((place / "done").exists)
        # the job's parent sends the mail before it ends
        until(lambda: not _children(daemon.process.pid))
    finally:
        daemon.stop()


_CRON_FOLDERS = ("/run", "/etc/cron.d", "/var/spool/cron", "/usr/sbin")


def _children(pid: int) -> list[psutil.Process]:
    """Return the children that run."""
    return [child for child in psutil.Process(pid).children() if lives(child)]


@pytest.mark.parametrize(
    "user",
    [
        pytest.param(php, marks=pytest.mark.needs("php-cli")),
        pytest.param(mailutils, marks=pytest.mark.needs("mailutils")),
        pytest.param(bsd_mailx, marks=pytest.mark.needs("bsd-mailx")),
        pytest.param(cron, marks=pytest.mark.needs("root", "cron")),
    ],
)
def test_nothing_is_lost_or_doubled(site: Site, user: Program) -> None:
    """Before, while smtpd is stopped, and after."""
    settings = site.file(
        "sendmail.conf",
        f"server = 127.0.0.1:{site.internal}\ndirectory = {site.folder}/maildrop\n"
        "domain = example.org\n",
    )
    script = f'#!/bin/sh\nPGMTA_SENDMAIL_CONF={settings} exec {shlex.quote(str(SENDMAIL))} "$@"\n'
    sendmail = site.file("sendmail", script, 0o755)
    user(site, sendmail, f"before@{DOMAIN}")
    site.wait(1)
    site.daemon.stop()
    user(site, sendmail, f"meanwhile1@{DOMAIN}")
    user(site, sendmail, f"meanwhile2@{DOMAIN}")
    assert len(site.mail()) == 1
    site.daemon.start()
    site.daemon.wait_log("serving", 2)
    user(site, sendmail, f"after@{DOMAIN}")
    drop = site.folder / "maildrop"
    until(lambda: not [name for name in drop.iterdir() if name.is_file()])
    found = {row["recipient"]: row["body"] for row in site.wait(4)}
    assert len(site.mail()) == 4
    for name in ("before", "meanwhile1", "meanwhile2", "after"):
        assert f"text of {name}@{DOMAIN}".encode() in found[f"{name}@{DOMAIN}"]
