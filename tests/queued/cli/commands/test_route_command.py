"""`queuectl route`: route, hosts and their answers; and `shaping.yaml` with its passwords."""

from __future__ import annotations

import asyncio
import json
import os
import re
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from click.testing import CliRunner, Result

from pgmta.config.loader import load
from pgmta.errors import ConfigError
from pgmta.model import StsPolicy
from queued.cli.commands.route import route_memory
from queued.cli.queuectl import main
from queued.config import QueuedConfig, Shaping, read_config, whole_shaping
from queued.delivery.tls.tls_policy import TlsMode
from queued.routing.routes import Routes
from tests.queued.config.test_config import keys, mentioned
from tests.support.authority import Authority
from tests.support.daemons import ROOT
from tests.support.name_server import Zone, serving_names
from tests.support.nexthop import NextHop, at
from tests.support.rows import mail

SECRET = "topsecret"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "password").write_text(f"{SECRET}\n")
    (tmp_path / "password").chmod(0o640)
    return tmp_path


def configure(folder: Path, *routes: dict[str, Any], **short: str) -> Path:
    """Write both files, and return the first."""
    logins = {"relay": {"user": "shop", "password_file": "password"}}
    (folder / "shaping.yaml").write_text(yaml.safe_dump({"logins": logins, "routes": routes}))
    path = folder / "queued.yaml"
    config = {
        "environment": {"hostname": "mta.example"},
        "delivery": {"dns": {"servers": ["127.0.0.1:1"], "timeout": "100ms"}},
        "shaping": "shaping.yaml",
        "routes": {f"{name}.example": target for name, target in short.items()},
    }
    path.write_text(yaml.safe_dump(config))
    return path


def route(path: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["route", "-c", str(path), *arguments])


def test_a_probe_shows_every_answer_and_sends_no_mail(folder: Path) -> None:
    with NextHop() as good, NextHop(at("EHLO", "421 4.7.0 Not you\x1b[31m")) as bad:
        hosts = [good.target, {"host": "127.0.0.1", "port": bad.port, "fallback": True}]
        path = configure(folder, {"name": "partner", "sender": "A@a.example", "to": hosts})
        found = route(path, "x@b.example", "--sender", "a@A.example", "--probe")
        assert found.exit_code == 0, found.output
        assert found.stdout.splitlines()[:2] == [
            "route      partner", f"to         {good.target},{bad.target}"
        ]  # fmt: skip
        assert found.stdout.index(good.target, 50) < found.stdout.rindex(bad.target)
        assert re.search(
            r"answer +127\.0\.0\.1: no TLS\noffers +PIPELINING, 8BITMIME", found.stdout
        )
        assert re.search(r"answer +.*4\.7\.0 Not you", found.stdout)
        assert "\x1b" not in found.stdout
        assert good.connections == bad.connections == 1
        assert good.transactions == bad.transactions == []
        (first, second) = json.loads(
            route(path, "b.example", "--sender", "a@a.example", "--probe", "--json").stdout
        )["hosts"]
        assert first["answer"]["extensions"]["SIZE"] == "104857600"
        assert "Not you" in second["answer"]["error"]


def test_route_says_why_a_host_or_an_address_is_left_out(folder: Path) -> None:
    zone: Zone = {
        "b.example": {"MX": ["1 inner.example.", "2 outer.example."]},
        "inner.example": {"A": ["10.1.2.3"]},
        "outer.example": {"A": ["192.168.1.25", "9.9.9.9"]},
    }
    path = configure(folder)
    with serving_names(zone) as server:
        delivery = {"dns": {"servers": [server.where]}, "ipv6": False}
        path.write_text(yaml.safe_dump({"delivery": delivery}))
        lines = route(path, "x@b.example").stdout.splitlines()
        hosts = json.loads(route(path, "b.example", "--json").stdout)["hosts"]
    assert [line for line in lines if line.startswith(("host", "left", "error", "addr"))] == [
        "host       inner.example:25",
        "left out   10.1.2.3: delivery.forbidden has 10.0.0.0/8",
        "error      5.4.4 inner.example has the address 10.1.2.3, and delivery.forbidden has "
        "10.0.0.0/8",
        "host       outer.example:25",
        "addresses  9.9.9.9",
        "left out   192.168.1.25: delivery.forbidden has 192.168.0.0/16",
    ]
    assert hosts[1]["left_out"] == [lines[-2].removeprefix("left out   ")]


def test_route_without_a_probe_connects_to_no_host(folder: Path) -> None:
    relay = {"host": "::1", "port": 1}
    path = configure(
        folder,
        {
            "metadata.stream": ["42"],
            "tenant": 42,
            "priority": "<=3",
            "to": [relay],
            "login": "relay",
            "implicit": True,
            "tls": "verify",
            "rewrite": {"from": {"@a.lan": "@a.example"}, "remove": "X-*", "sender": {}},
        },
        {"domain": "*.b.example", "sender_domain": "a.example", "to": "mx", "tls": "dane"},
        b="127.0.0.1:1",
    )
    (folder / "password").unlink()  # it is not needed
    found = route(
        path, "x@b.example", "--metadata", "stream=42", "--tenant", "42", "--priority", "3"
    )
    assert found.stdout == (
        "route      routes[0]\nto         [::1]:1\ntransport  smtp, TLS from the first octet\n"
        "tls        verify\nlogin      relay, as shop\n"
        "rewrite    from: @a.lan -> @a.example\nrewrite    remove: X-*\n"
        "ceiling    20 connections, no rate\n"
        "           each worker: 20 connections, by delivery.connections of queued.yaml, "
        "its default\n"
        "\nhost       [::1]:1\naddresses  ::1\n"
        "policy     verify, by route\n"
    )
    assert json.loads(route(path, "x@b.example", "--json").stdout) == {
        "address": "x@b.example", "redirect": None,
        "route": "routes.b.example", "to": "127.0.0.1:1",
        "transport": "smtp", "implicit_tls": False, "tls": None, "login": None, "error": None,
        "rate": None, "rewrite": None, "mta_sts": None,
        "ceiling": {
            "route": "routes.b.example", "shown": "20", "connections": 20,
            "connections_by": "delivery.connections of queued.yaml, its default",
            "rate": None, "burst": None, "per": None, "rate_by": None,
        },
        "hosts": [{
            "host": "127.0.0.1", "port": 1, "secure": False, "addresses": ["127.0.0.1"],
            "left_out": [], "error": None, "answer": None, "plain_text": None, "tls": {
                "mode": "opportunistic", "source": "default", "evidence": "",
                "names": ["127.0.0.1"],
            },
        }],
    }  # fmt: skip
    away = route(path, "x@c.b.example", "--sender", "x@a.example")
    assert away.exit_code == 1
    assert "route      routes[1]\nto         mx:c.b.example\ntls        dane\n" in away.stdout
    assert "\nerror      4." in away.stdout
    for arguments in (["@b.example"], ["b.example", "--metadata", "tenant"], ["b..example"]):
        assert route(path, *arguments).exit_code == 2
    missing = route(path, "b.example", "--probe")
    assert (missing.exit_code, "password: No such file" in missing.stderr) == (2, True)


def test_a_probe_says_that_the_login_was_accepted(folder: Path) -> None:
    with NextHop() as hop:
        hop.extensions = ("AUTH PLAIN",)
        path = configure(folder, {"to": hop.target, "login": "relay", "tls": "none"})
        shown = route(path, "x@b.example", "--probe").stdout
        assert "\nlogin      accepted, as shop\n" in shown
        assert hop.transactions == []
    assert "accepted" not in route(path, "x@b.example", "--probe").stdout


def test_route_of_staging_is_that_of_the_one_address(folder: Path) -> None:
    path = configure(folder, b="127.0.0.1:1", staging="127.0.0.1:2")
    settings = yaml.safe_load(path.read_text())
    settings["delivery"]["redirect"] = "Team@Staging.example"
    path.write_text(yaml.safe_dump(settings))
    assert route(path, "x@b.example").stdout.splitlines()[:3] == [
        "staging    it goes to Team@Staging.example instead (delivery.redirect)",
        "route      routes.staging.example", "to         127.0.0.1:2",
    ]  # fmt: skip
    found = json.loads(route(path, "x@b.example", "--json").stdout)
    assert (found["address"], found["redirect"]) == ("x@b.example", "Team@Staging.example")


def test_a_telephone_number_needs_a_route_of_its_own(folder: Path) -> None:
    found = route(configure(folder, {"name": "all", "to": "mx.example"}), "+491701234567")
    assert (found.exit_code, found.stdout) == (1, "")
    assert "5.1.2 no route takes telephone numbers" in found.stderr


def test_route_says_what_workers_remember(
    folder: Path, database: str, db: psycopg.Connection
) -> None:
    """A kept MTA-STS policy counts, and a host whose TLS failed gets plain text."""
    path = configure(folder, b="127.0.0.1:1")
    data = yaml.safe_load(path.read_text())
    data["environment"]["database"] = {"uri": database}
    path.write_text(yaml.safe_dump(data))
    db.execute(
        "INSERT INTO broken_tls (host, until, reason, minimum)"
        " VALUES ('127.0.0.1:1', now() + interval '1 h', '4.7.5 TLS with x failed', 'TLSv1.2'),"
        " ('[::1]:1', now() + interval '1 h', 'another', 'TLSv1.2')"
    )
    db.execute(
        "INSERT INTO sts_policies (domain, id, mode, mx, max_age, expires_at, next_fetch) VALUES"
        " ('b.example', '7', 'enforce', '{mx.b.example}', 86400, now() + interval '1 day', now())"
    )
    shown = route(path, "x@b.example")
    assert shown.stderr == ""
    assert re.search(r"\nplain text until 20.*, as TLS failed: 4.7.5 TLS with x", shown.stdout)
    (host,) = json.loads(route(path, "x@b.example", "--json").stdout)["hosts"]
    assert host["plain_text"]["reason"] == "4.7.5 TLS with x failed"
    data["delivery"]["tls"] = {"minimum": "TLSv1.3"}
    path.write_text(yaml.safe_dump(data))
    assert "plain text" not in route(path, "x@b.example").stdout  # it failed with another one
    data["delivery"]["tls"] = {"mode": "encrypt"}
    path.write_text(yaml.safe_dump(data))
    assert "plain text" not in route(path, "x@b.example").stdout  # it would be refused

    async def kept() -> StsPolicy | None:
        async with route_memory(load(path, QueuedConfig).environment, "TLSv1.2") as (
            memory,
            problem,
        ):
            assert problem == ""
            return await memory.functions.find_policy("b.example")

    found = asyncio.run(kept())
    assert found
    assert (found.id, found.mode, found.mx) == ("7", "enforce", ("mx.b.example",))
    db.execute("DROP TABLE broken_tls")
    assert "not known: relation" in route(path, "x@b.example").stderr


def test_file_of_authorities_is_relative_to_the_configuration(folder: Path) -> None:
    path = folder / "queued.yaml"
    path.write_text("delivery: {tls: {ca: ca.pem}}")
    with pytest.raises(ConfigError, match=re.escape(f"{folder}/ca.pem: No such file")):
        read_config(path)
    authority = Authority(folder)
    assert read_config(path).delivery.tls.ca == str(authority.path)


def test_dane_is_of_use_for_mx_hosts(folder: Path) -> None:
    for entry, target, mode, use in (
        (None, "mx", "best", True),
        (None, "mx", "opportunistic", False),
        (None, "relay.example", "best", False),
        ({"to": "mx", "tls": "dane"}, "relay.example", "none", True),
        ({"to": "mx", "tls": "none"}, "relay.example", "best", False),
    ):
        config = read_config(configure(folder, *([entry] if entry else []), b=target))
        routes = Routes(config.routes, config.routing)
        assert routes.may_use_dane(TlsMode(mode)) is use, (entry, target, mode)


@pytest.mark.parametrize(
    ("content", "mode", "reason"),
    [
        (b"x\n", 0o644, "has the mode 0644: run `chmod 0640` or `chmod 0600`"),
        (b"x\n", 0o660, "has the mode 0660: run `chmod 0640` or `chmod 0600`"),
        (b"\n", 0o600, "is empty"),
        (b"a\nb\n", 0o600, "has more than one line, or a control character"),
        (b"a\0b", 0o600, "has more than one line, or a control character"),
        (b"\xff", 0o600, "is not UTF-8"),
        (b"x" * 1025, 0o600, "has more than 1024 octets"),
        (b" p\xc3\xa4ss w\xc3\xb6rd \r\n", 0o400, None),
    ],
)
def test_files_of_passwords(folder: Path, content: bytes, mode: int, reason: str | None) -> None:
    path = configure(folder, {"to": "smtp.example:587", "login": "relay"})
    (folder / "password").write_bytes(content)
    (folder / "password").chmod(mode)
    if reason is None:
        config = read_config(path)
        assert config.routing.password("relay") == " päss wörd "
        found = Routes({}, config.routing).find(mail("a.example"))
        shown = f"{config!r} {config.routing!r} {found!r}"
        assert "wörd" not in shown + config.model_dump_json() + config.routing.model_dump_json()
        return
    with pytest.raises(ConfigError) as caught:
        read_config(path)
    key = "logins.relay.password_file"
    assert caught.value.problems == [f"{folder}/shaping.yaml:3: {key}: {folder}/password {reason}"]


def _without_parameters(text: str) -> str:
    """Leave out the keys of another transport than that of the route."""
    return re.sub(r"^ *parameters: .*\n", "", text, flags=re.MULTILINE)


def test_the_shipped_file_has_every_option(folder: Path) -> None:
    text = (ROOT / "etc" / "shaping.yaml").read_text(encoding="utf-8")
    assert load(ROOT / "etc" / "shaping.yaml", whole_shaping()) == whole_shaping()()
    path = configure(folder)
    plain = re.sub(r"^( *)#(?=[^\s#])", r"\1", text, flags=re.MULTILINE)
    (folder / "shaping.yaml").write_text(plain, encoding="utf-8")
    os.rename(folder / "password", folder / "relay1.password")
    for name in ("verp.key", "provider.key"):
        (folder / name).write_text("k" * 32)
        (folder / name).chmod(0o600)
    (folder / "shaping.yaml").write_text(_without_parameters(plain), encoding="utf-8")
    data = yaml.safe_load(plain)
    (data["logins"],) = data["logins"].values()
    for route in data["routes"]:
        route["metadata"] = route.pop("metadata.stream")
    tree = keys(whole_shaping())
    tree["logins"] = dict.fromkeys(("user", "password_file", "mechanisms"))
    assert mentioned(data, tree) == tree
    found = read_config(path).routing
    (entry,) = found.routes
    assert entry.to[0].host == "a.smtp.example"
    assert QueuedConfig().routing == Shaping()
