"""A newcomer's first minutes: `make run` with the configurations that are shipped, and its demo.

The ports are fixed, so the commands live in a network that no other test sees.
"""

from __future__ import annotations

import csv
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from pgmta.postgres.embedded.embedded_server import DATABASE, EmbeddedServer
from tests.support.daemons import ROOT
from tests.support.database import data_folder
from tests.support.waiting import PATIENCE

BIN = Path(sys.executable).parent
QUEUECTL = str(BIN / "queuectl")
CONFIG = ["-c", "etc/dev/queued.yaml"]
UP = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$0" up', QUEUECTL]
PAGE = ROOT / "docs" / "campaigns.md"
POST = (
    "import sys, urllib.request as u\n"
    "url, *form = sys.argv[1:]\n"
    "answer = u.urlopen(u.Request(url, form[0].encode() if form else None))\n"
    "print(answer.url, answer.read().decode())"
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.geteuid() != 0 or not all(map(shutil.which, ("unshare", "nsenter", "ip"))),
        reason="needs root, who may make a network namespace",
    ),
]


class Newcomer:
    """Has `queuectl up` running in an empty folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process = subprocess.Popen(UP, cwd=folder, stdout=subprocess.PIPE, text=True)
        self.said: list[str] = []
        assert self.process.stdout
        for line in self.process.stdout:
            self.said.append(line)
            if "Ctrl-C" in line:
                return
        raise AssertionError(f"up ended: {self.said}")

    def run(self, *command: str) -> str:
        """Run a command in the same folder and network."""
        enter = ["nsenter", "--target", str(self.process.pid), "--net", *command]
        done = subprocess.run(
            enter, cwd=self.folder, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def browse(self, url: str, *form: str) -> str:
        """Return the URL of the page to which a URL leads, and the page; `form` is sent to it."""
        return self.run(sys.executable, "-c", POST, url, *form)

    def active(self) -> int:
        """Return how many accounts are active."""
        with psycopg.connect(EmbeddedServer(self.folder / "var").uri(DATABASE)) as db:
            query = "SELECT count(*) FROM lifecycle.accounts WHERE status = 'active'"
            [(number,)] = db.execute(query).fetchall()
        return int(number)


@pytest.fixture
def newcomer() -> Iterator[Newcomer]:
    """A newcomer, whose Ctrl-C ends all of it well."""
    folder = data_folder()
    try:
        found = Newcomer(folder)
        try:
            yield found
        finally:
            found.process.send_signal(signal.SIGINT)
            found.process.communicate(timeout=PATIENCE)
        assert found.process.returncode == 0
    finally:
        EmbeddedServer(folder / "var").stop("immediate")
        shutil.rmtree(folder)


def test_the_links_of_the_demo_activate_its_accounts(newcomer: Newcomer) -> None:
    [page, web] = re.findall(r"http://127\.0\.0\.1:\d+", "".join(newcomer.said))[:2]
    links = re.findall(r"http://\S+", newcomer.run(QUEUECTL, "lifecycle", "demo", *CONFIG))
    assert len(links) == 3
    shown = newcomer.browse(f"{page}/")
    assert shown.count("Welcome, ") == 3
    mails = [newcomer.browse(f"{page}{path}/links") for path in re.findall(r'"(/m/[^"]+)"', shown)]
    for link in links:
        assert link.startswith(f"{web}/activate?token=")
        assert sum(f'href="{link}"' in mail for mail in mails) == 1
        assert '<form method="post"' in newcomer.browse(link)
        assert newcomer.active() == links.index(link)
        token = link.partition("=")[2]
        assert newcomer.browse(f"{web}/activate", f"token={token}").startswith(f"{web}/activated")
    assert newcomer.active() == 3


def test_a_first_campaign_in_ten_commands(newcomer: Newcomer) -> None:
    """Those of docs/campaigns.md, from `make run` to the report."""
    (block,) = re.findall(r"## A first campaign\n.*?```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    up, *commands = block.splitlines()
    assert (up, len(commands)) == ("make run", 9)
    shutil.copytree(ROOT / "examples", newcomer.folder / "examples")
    said = {}
    for command in commands:
        program, *words = shlex.split(command)
        assert program == ".venv/bin/queuectl"
        said[words[1]] = newcomer.run(QUEUECTL, *words)
    assert "imported 100 recipients" in said["import"]
    assert "Hello Ann" in said["preview"]
    assert "sent 100, failed 0, unknown 0" in said["watch"].splitlines()[-1]
    with (newcomer.folder / "report.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["state"] for row in rows] == ["sent"] * 100
    page, web = re.findall(r"http://127\.0\.0\.1:\d+", "".join(newcomer.said))[:2]
    shown = newcomer.browse(f"{page}/")
    assert shown.count("spring is in") == 100  # the first page of the list
    path = re.findall(r'"(/m/[^"]+)"', shown)[0]
    links = re.findall(r'href="(http[^"]+)"', newcomer.browse(f"{page}{path}/links"))
    (link,) = [link for link in links if link.startswith(f"{web}/unsubscribe?token=")]
    token = link.partition("=")[2]
    assert newcomer.browse(f"{web}/unsubscribe", f"token={token}").startswith(f"{web}/unsub")
    listed = newcomer.run(QUEUECTL, "suppression", "list", *CONFIG)
    assert listed.count("@example.com") == 1
