"""The Debian package in a bare Debian 13: installed, used, upgraded with mail, removed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packaging.test_install import SHARED, VERSION
from tests.support.daemons import ROOT
from tests.support.database import memory_folder
from tests.support.debian_root import build_package, make_root, previous_tree, run_in

REFUSED = """
mv /usr/bin/python3.13 /usr/bin/away
! dpkg -i /tmp/old.deb
! dpkg -s pgmta 2>/dev/null
[ ! -e /usr/lib/pgmta ] && [ ! -e /etc/pgmta ]
mv /usr/bin/away /usr/bin/python3.13
"""

FUNCTIONS = r"""
as_pgmta="setpriv --reuid pgmta --regid pgmta --init-groups --inh-caps=+net_bind_service
    --ambient-caps=+net_bind_service --"
unit() { sed -n 's/^ExecStart=//p' /usr/lib/systemd/system/$1.service; }
start() { $as_pgmta $(unit $1) >>/tmp/$1.log 2>&1 & echo $! > /tmp/$1.pid; }
stop() { kill $(cat /tmp/$1.pid); wait $(cat /tmp/$1.pid) || { tail /tmp/$1.log; return 1; }; }
database() { [ -e /usr/lib/systemd/system/pgmta-database.service ] || return 0
    start pgmta-database; within grep -q '^PostgreSQL in' /tmp/pgmta-database.log; }
no_database() { [ ! -e /tmp/pgmta-database.pid ] || stop pgmta-database
    rm -f /tmp/pgmta-database.*; }
within() { for _ in $(seq 600); do "$@" && return; sleep 0.1; done; tail /tmp/*.log; return 1; }
greets() { python3 -c "import smtplib; smtplib.SMTP('127.0.0.1', 25).quit()" 2>/dev/null; }
mail() { python3 -c "
import smtplib
with smtplib.SMTP('127.0.0.1', 25) as session:
    session.sendmail('a@a.example', ['b@b.example'], 'Subject: $1\r\n\r\nx\r\n')"; }
caught() { [ "$(find /var/lib/pgmta/sink/new -type f 2>/dev/null | wc -l)" = $1 ]; }
"""

FIRST = """
dpkg -i /tmp/old.deb
for file in {shared}; do test -s /usr/share/$file; done
test -s /usr/share/doc/pgmta/examples/fastapi_shop.py
cd /usr/lib/systemd/system
said=$(systemd-analyze verify --man=no pgmta-database.service smtpd.service smtpd.socket \
    queued.service queued@main.service queued-web.service queued-api.service \
    quarantine-retention@x.service \
    quarantine-retention@x.timer 2>&1) && [ -z "$said" ] || { echo "$said"; false; }
cd /
smtpd check
queued check
printf 'routes: {"*": "127.0.0.1:2526"}\\n' >> /etc/pgmta/queued.yaml
database
$as_pgmta queuectl database migrate
start smtpd
within greets
mail waits
runuser -u pgmta -- queuectl list | grep -q b@b.example
! queuectl list 2>/tmp/refused
grep -q 'runuser -u pgmta' /tmp/refused
stop smtpd
no_database
"""

UPGRADE = """
[ "$(stat -c %U:%G:%a /etc/pgmta/web.yaml)" = root:pgmta:640 ]
chmod 600 /etc/pgmta/web.yaml
dpkg -i /tmp/new.deb </dev/null
[ "$(stat -c %U:%G:%a /etc/pgmta/web.yaml)" = root:pgmta:600 ]
for command in smtpd queued queuectl quarantine-retention; do
    [ "$($command --version)" = "$command (pgmta) {version}" ]
done
grep -q 2526 /etc/pgmta/queued.yaml
database
$as_pgmta queuectl database migrate
$as_pgmta smtpd sink --maildir /var/lib/pgmta/sink & sink=$!
start smtpd
start queued
within greets
mail flows
within caught 2
stop queued
stop smtpd
no_database
kill $sink
"""

REMOVAL = """
dpkg -r pgmta
[ ! -e /usr/lib/pgmta ] && [ ! -e /usr/bin/smtpd ]
test -e /etc/pgmta/queued.yaml
dpkg -P pgmta </dev/null
[ ! -e /etc/pgmta ]
ls /var/lib/pgmta/postgres
"""


def shared() -> str:
    """Man pages, JSON schemas and completion files as Debian has them.

    There `sendmail` and `mailq` are of other packages too.
    """
    return " ".join(
        f"{name}.gz"
        if name.startswith("man/")
        else name.replace("site-functions", "vendor-completions")
        for name in SHARED - {"man/man1/sendmail.1", "man/man1/mailq.1"}
    )


@pytest.fixture
def folder() -> Iterator[Path]:
    folder = memory_folder()
    yield folder
    shutil.rmtree(folder)


@pytest.mark.slow
@pytest.mark.needs("root", "mmdebstrap", "bubblewrap")
@pytest.mark.timeout(1500)
def test_the_package_in_a_bare_system(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = make_root(folder, tmp_path_factory)
    for name, tree, version in (
        ("old", previous_tree(folder / "tree"), f"{VERSION}+git1"),
        ("new", ROOT, f"{VERSION}+git2"),
    ):
        package = build_package(tree, folder / name, version)
        shutil.move(package, root / "tmp" / f"{name}.deb")
    refused = run_in(root, REFUSED)
    assert "pgmta needs Debian 13, whose Python is 3.13: nothing was installed\n" in refused
    script = FUNCTIONS + FIRST + UPGRADE + REMOVAL
    said = run_in(root, script.replace("{version}", VERSION).replace("{shared}", shared()))
    assert "next: queuectl init" in said
