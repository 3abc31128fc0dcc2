"""Warnings of `smtpd check` about options that open more than they should."""

from __future__ import annotations

import getpass
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from smtpd.cli import main
from smtpd.config import SmtpdConfig
from smtpd.process import privileges
from smtpd.process import risks as module
from smtpd.process.risks import container_gateway, risks

BRIDGE = {"networks": ["172.16.0.0/12"]}
TABLE = {"table": True}
PAIR = {"certificate": "mx.pem"}
ALL = {"address": "0.0.0.0", "port": 25}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, []),
        ({"listen": [ALL], "relay": {"networks": ["10.0.0.0/8", "fd00::/16"]}}, []),
        ({"listen": [ALL], "relay": {"networks": ["0.0.0.0/1"]}}, ["relay.networks: 0.0.0.0/1: "]),
        (
            {"listen": [{**ALL, "tls": "none"}], "certificates": [PAIR]},
            ["certificates: no listener uses them"],
        ),
        ({"listen": [{**ALL}], "certificates": [PAIR]}, []),
        (
            {"listen": [{**ALL, "tls": "none", "certificates": [PAIR]}]},
            ["listen[0].certificates: clients get no TLS"],
        ),
        ({"relay": {"networks": ["2000::/3"]}}, ["relay.networks: 2000::/3: "]),
        (
            {"listen": [ALL], "relay": BRIDGE},
            ["listen[0]: relay.networks has 172.17.0.1, "],
        ),
        (
            {
                "listen": [{**ALL, "proxy": ["172.17.0.1"]}],
                "relay": BRIDGE,
            },
            [],
        ),
        ({"listen": [{**ALL, "role": "submission"}], "relay": BRIDGE}, []),
        ({"listen": [{}], "relay": BRIDGE}, []),
        (
            {"listen": [{"proxy": ["::/0"], "xclient": ["0.0.0.0/1"]}]},
            ["listen[0].proxy: ::/0: ", "listen[0].xclient: 0.0.0.0/1: "],
        ),
        (
            {"listen": [{**ALL, "auth": "offered", "auth_without_tls": True}]},
            ["listen[0].auth_without_tls: "],
        ),
        ({"listen": [{"auth": "offered", "auth_without_tls": True}]}, []),
        (
            {"listen": [{**ALL, "trust_traceparent": True}, {"trust_traceparent": True}]},
            ["listen[0].trust_traceparent: "],
        ),
        (
            {"listen": [{"client_certificates": {"authorities": "/x", "names": ["a"]}}]},
            ["listen[0].client_certificates: "],
        ),
        (
            {"listen": [{**ALL, "tls": "required"}, {"tls": "required"}]},
            ["listen[0].tls: servers without it"],
        ),
        ({"relay": {"recipients": [TABLE]}}, ["relay.recipients: none is ever asked"]),
        (
            {
                "relay": {
                    "domains": ["a.b", "c"],
                    "recipients": [{**TABLE, "domains": ["c"]}, TABLE, TABLE],
                }
            },
            ["relay.recipients[2]: is never asked, because [1] has all domains"],
        ),
    ],
)
def test_risks(config: dict[str, Any], expected: list[str]) -> None:
    found = risks(SmtpdConfig.model_validate(config), "172.17.0.1")
    assert len(found) == len(expected), found
    assert all(text.startswith(begin) for text, begin in zip(found, expected, strict=True))


def test_the_gateway_of_a_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    routes = tmp_path / "route"
    routes.write_text(
        "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\n"
        "eth0\t000011AC\t00000000\t0001\t0\t0\t0\t0000FFFF\n"
        "eth0\t00000000\t010011AC\t0003\t0\t0\t0\t00000000\n"
    )
    monkeypatch.setattr(module, "_ROUTES_FILE", routes)
    monkeypatch.setattr(module, "_CONTAINER_FILES", (tmp_path / "dockerenv",))
    for name in ("container", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    assert container_gateway() == ""
    (tmp_path / "dockerenv").touch()
    assert container_gateway() == "172.17.0.1"
    monkeypatch.setattr(module, "_ROUTES_FILE", tmp_path / "missing")
    assert container_gateway() == ""


@pytest.mark.parametrize("hooks", [False, True])
def test_warnings_come_at_the_start(hooks: bool, tmp_path: Path) -> None:
    path = tmp_path / "smtpd.yaml"
    path.write_text("relay: {networks: [0.0.0.0/0]}\nlisten: [{tls: none}]\n")
    if hooks:
        (tmp_path / "taker.py").write_text(
            "class Taker:\n    async def handle_NOOP(self, *_): ...\n"
        )
        path.write_text(path.read_text() + "hooks: ['taker:Taker']\n")
    result = CliRunner().invoke(main, ["run", "-c", str(path), "--plan", "1"])
    assert result.exit_code == 0, result.stderr  # the process that makes the plan ends with it
    reason = f"reason='{path}:1: relay.networks: 0.0.0.0/0: its clients may send to any address; "
    assert result.stderr.count("configuration") == result.stderr.count(reason) == 1


def test_the_user_has_to_exist(tmp_path: Path) -> None:
    path = tmp_path / "smtpd.yaml"
    path.write_text("processes: 1\nuser: nobody-of-this-name\n")
    result = CliRunner().invoke(main, ["check", "-c", str(path)])
    assert result.exit_code == 2
    reason = "no user of this system is called 'nobody-of-this-name'"
    assert result.stderr == f"error: {path}:2: user: {reason}\n"
    path.write_text(f"user: {getpass.getuser()}\n")
    result = CliRunner().invoke(main, ["check", "-c", str(path)])
    assert result.exit_code == (2 if os.geteuid() == 0 else 0)  # no database for another user


def test_the_user_has_to_reach_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = SmtpdConfig(user=getpass.getuser())
    assert privileges.shut_out(config) == ""
    monkeypatch.setattr(os, "access", lambda path, _: len(Path(path).parts) < 3)
    reason = privileges.shut_out(config)
    assert reason.startswith(f"{config.user} can't read {os.__file__}: no way through /")
    assert privileges.shut_out(SmtpdConfig()) == ""
