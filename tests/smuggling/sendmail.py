"""Sendmail out of the Debian package, as a relay on loopback."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.peer.package import libraries
from bench.peer.room import furnish
from bench.peer.system import Daemon
from tests.support.packages import folder
from tests.support.waiting import free_port

_HOSTNAME = "bench.pgmta.test"
_SETTINGS = """\
divert(0)dnl
OSTYPE(`linux')dnl
undefine(`ALIAS_FILE')dnl
FEATURE(`promiscuous_relay')dnl
FEATURE(`accept_unresolvable_domains')dnl
FEATURE(`nocanonify')dnl
FEATURE(`no_default_msa')dnl
define(`SMART_HOST', `relay:[127.0.0.1]')dnl
define(`RELAY_MAILER_ARGS', `TCP $h NEXT_HOP')dnl
define(`confDOMAIN_NAME', `HOSTNAME')dnl
define(`QUEUE_DIR', `PLACE/queue')dnl
define(`confPID_FILE', `PLACE/pid')dnl
define(`STATUS_FILE', `')dnl
define(`HELP_FILE', `')dnl
define(`confDONT_PROBE_INTERFACES', `True')dnl
define(`confTO_IDENT', `0')dnl
define(`confSERVICE_SWITCH_FILE', `PLACE/switch')dnl
define(`confDONT_BLAME_SENDMAIL', `GroupWritableDirPathSafe')dnl
define(`confDELIVERY_MODE', `background')dnl
define(`confREFUSE_LA', `1000')dnl
define(`confQUEUE_LA', `1000')dnl
define(`confDELAY_LA', `0')dnl
DAEMON_OPTIONS(`Name=MTA, Addr=127.0.0.1, Port=PORT')dnl
MAILER(`smtp')dnl
"""


def _configuration(place: Path, port: int, next_hop: int) -> str:
    """Return the text of sendmail.cf, which m4 makes of the settings."""
    root = folder() / "sendmail-bin"
    settings = _SETTINGS
    for word, value in (
        ("PLACE", place),
        ("NEXT_HOP", next_hop),
        ("HOSTNAME", _HOSTNAME),
        ("PORT", port),
    ):
        settings = settings.replace(word, str(value))
    (place / "sendmail.mc").write_text(settings)
    macros = root / "usr/share/sendmail/cf"
    return subprocess.run(
        [
            root / "usr/bin/m4",
            f"-D_CF_DIR_={macros}/",
            macros / "m4/cf.m4",
            place / "sendmail.mc",
        ],
        check=True,
        capture_output=True,
        text=True,
        env={"LD_LIBRARY_PATH": libraries(root)},
    ).stdout


@contextmanager
def sendmail(place: Path, next_hop: int) -> Iterator[int]:
    """Run Sendmail, which asks no name server; return its port."""
    port = free_port()
    (place / "queue").mkdir(mode=0o700)
    (place / "switch").write_text("hosts files\naliases files\n")
    (place / "hosts").write_text(f"127.0.0.1 {_HOSTNAME} localhost\n")
    (place / "resolv.conf").write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
    config = place / "sendmail.cf"
    config.write_text(_configuration(place, port, next_hop))
    covers = {"/etc/hosts": place / "hosts", "/etc/resolv.conf": place / "resolv.conf"}
    room = furnish(place, ["smmta", "smmsp"], folders=covers)
    program = folder() / "sendmail-bin/usr/libexec/sendmail/sendmail"
    # with its name from the kernel it would wait for a minute for a name server
    named = ["unshare", "--uts", "sh", "-c", f'hostname {_HOSTNAME} && exec "$@"', "sh"]
    command: list[str | Path] = [*named, program, "-C", config, "-bD", "-q1m"]
    environment = {"LD_LIBRARY_PATH": libraries(folder() / "sendmail-bin")}
    daemon = Daemon("sendmail", room.command(command), place / "sendmail.log", environment)
    try:
        daemon.wait_greeting(port)
        yield port
    finally:
        daemon.stop()
