"""pipx in a bare Debian 13: installed for one user, used, upgraded with mail, removed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.packaging.test_install import VERSION, build, tree
from tests.support.daemons import ROOT
from tests.support.debian_root import make_root, previous_tree, run_in
from tests.support.waiting import PATIENCE, free_port

AS_USER = """
useradd --create-home someone
exec setpriv --reuid someone --regid someone --init-groups env HOME=/home/someone \
    PATH=/home/someone/.local/bin:/usr/bin:/bin XDG_RUNTIME_DIR= sh -e /tmp/user.sh
"""
FIRST = """
cd
pipx install /tmp/old/*.whl
shared=.local/share/pipx/venvs/pgmta/share
[ -d $shared ] || shared=.local/pipx/venvs/pgmta/share
for name in bash-completion/completions/queuectl fish/vendor_completions.d/queuectl.fish \
        zsh/site-functions/_queuectl doc/pgmta/examples/fastapi_shop.py; do
    test -s $shared/$name
done
test -s .local/share/man/man5/queued.yaml.5
queuectl init mail --hostname mx.example --address 127.0.0.1 --port {smtpd}
every=$(sed -n 's/^# queued delivers mail. Every option: //p' mail/queued.yaml)
test -s $every
export PGMTA_CONFIG=$PWD/mail
smtpd check
queued check
printf 'routes: {"*": "127.0.0.1:{sink}"}\\n' >> mail/queued.yaml
"""
MAIL = r"""
within() { for _ in $(seq 600); do "$@" && return; sleep 0.1; done; cat *.log; return 1; }
mail() { python3 -c "
import smtplib
with smtplib.SMTP('127.0.0.1', {smtpd}) as session:
    session.sendmail('a@a.example', ['b@b.example'], 'Subject: $1\r\n\r\nx\r\n')" 2>/dev/null; }
caught() { [ "$(find sink/new -type f 2>/dev/null | wc -l)" = $1 ]; }
database() { queuectl database run >database.log 2>&1 & database=$!
within grep -q '^PostgreSQL in' database.log; }
database
queuectl database migrate
smtpd run 2>>smtpd.log & smtpd=$!
within mail waits
queuectl list | grep -q b@b.example
for each in $smtpd $database; do kill $each; wait $each; done
pipx install --force /tmp/new/*.whl
for command in smtpd queued queuectl sendmail mailq quarantine-retention; do
    [ "$($command --version)" = "$command (pgmta) {version}" ]
done
database
queuectl database migrate
smtpd sink --port {sink} --maildir sink & sink=$!
smtpd run 2>>smtpd.log & smtpd=$!
queued run 2>>queued.log & queued=$!
within mail flows
within caught 2
for each in $queued $smtpd $database; do kill $each; wait $each; done
kill $sink
pipx uninstall pgmta
[ ! -e .local/bin/smtpd ] && [ ! -e .local/share/man/man5/queued.yaml.5 ]
ls mail/queued.yaml mail/var/postgres/PG_VERSION
"""


def registry_answers(folder: Path) -> bool:
    """Return whether pip finds a library of pgmta in a registry, as pipx has to."""
    library = f"click=={version('click')}"
    return subprocess.run(
        [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-cache-dir",
         "--retries", "0", "--timeout", "20", "-d", folder / "looked", library],
        env={name: value for name, value in os.environ.items() if name != "PIP_FIND_LINKS"},
        capture_output=True, timeout=PATIENCE, check=False,
    ).returncode == 0  # fmt: skip


@pytest.mark.slow
@pytest.mark.needs("root", "mmdebstrap", "bubblewrap")
@pytest.mark.timeout(900)
def test_pipx_in_a_bare_system(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    if not registry_answers(folder):
        pytest.skip("pip of this machine reaches no registry")
    root = make_root(folder, tmp_path_factory)
    for name, source in (("old", previous_tree(folder / "tree")), ("new", ROOT)):
        wheel = build("wheel", source if source != ROOT else tree(folder / name))
        place = root / "tmp" / name
        place.mkdir()
        shutil.copy(wheel, place)
    script = (FIRST + MAIL).replace("{version}", VERSION)
    for name in ("{smtpd}", "{sink}"):  # the system shares the network of this machine
        script = script.replace(name, str(free_port()))
    (root / "tmp" / "user.sh").write_text(script)
    run_in(root, AS_USER, network=True)


@pytest.mark.slow
def test_an_old_python_is_refused_in_one_line(tmp_path: Path) -> None:
    wheel = build("wheel", tree(tmp_path / "tree"))
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--no-deps",
         "--no-index", "--python-version", "3.11", "--only-binary", ":all:", "-d", tmp_path, wheel],
        capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    said = [line for line in done.stderr.splitlines() if "ERROR" in line]
    assert said == ["ERROR: Package 'pgmta' requires a different Python: 3.11.0 not in '>=3.12'"]
