"""docs/mail/providers.md: it has each interface, and its files pass `queued check`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from pgmta_features.providers.interface import interface_names, read_interface
from queued.cli.queuectl import main as queuectl
from queued.config import read_config
from queued.daemon.queued import main as queued
from tests.support.daemons import ROOT

PAGE = (ROOT / "docs" / "mail" / "providers.md").read_text(encoding="utf-8")
FILES = re.findall(r"```yaml\n# /etc/pgmta/shaping.yaml\n(.*?)```", PAGE, re.DOTALL)
SECRET = "s3cret-of-the-account"


def test_the_table_has_each_interface() -> None:
    rows = {
        name: cells
        for line in PAGE.splitlines()
        if (cells := [each.strip() for each in line.strip("|").split("|")]) and len(cells) == 7
        for name in cells[0].replace("`", "").split(", ")
    }
    assert [name for name in rows if name not in ("interface", "---")] == [
        "sendgrid", "mailgun", "mailgun_raw", "postmark", "resend", "twilio", "vonage",
        "whatsapp", "whatsapp_text",
    ]  # fmt: skip
    for name in interface_names():
        described = read_interface(name)
        _, _, secrets, values, id_of, *_ = rows[name]
        assert re.findall("`([a-z]+)`", secrets) == list(described.secrets)
        assert re.findall("`([a-z]+)`", values) == [*described.values, *described.optional]
        parameters = described.parameters
        assert id_of.strip("`") in (parameters.get("id") or parameters["id_header"])


@pytest.mark.parametrize("file", FILES)
def test_the_files_pass_the_check_and_show_no_secret(
    file: str, tmp_path: Path, database: str
) -> None:
    (tmp_path / "shaping.yaml").write_text(file, encoding="utf-8")
    for name in yaml.safe_load(file)["secrets"].values():
        secret = tmp_path / name
        secret.write_text(SECRET)
        secret.chmod(0o600)
    config = tmp_path / "queued.yaml"
    config.write_text(f"shaping: shaping.yaml\nenvironment: {{database: {{uri: '{database}'}}}}\n")
    checked = CliRunner().invoke(queued, ["check", "-c", str(config)])
    assert checked.exit_code == 0, checked.output
    shown = [checked.output, repr(read_config(config))]
    for arguments in (["a@b.example.net"], ["a@b.example.org"], ["1@sms"]):
        for more in ([], ["--json"]):
            command = ["route", "-c", str(config), *arguments, *more]
            shown.append(CliRunner().invoke(queuectl, command).output)
    assert SECRET not in "".join(shown)


def test_keys_of_other_transports_and_secrets_that_are_not_there(
    tmp_path: Path, database: str
) -> None:
    config = tmp_path / "queued.yaml"
    config.write_text(f"shaping: shaping.yaml\nenvironment: {{database: {{uri: '{database}'}}}}\n")
    (tmp_path / "a.key").touch(0o600)
    (tmp_path / "a.key").write_text(SECRET)
    (tmp_path / "shaping.yaml").write_text(
        "secrets: {sendgrid: a.key}\nroutes:\n"
        "- {transport: http, parameters: {interface: sendgrid, secrets: {key: sendgird}}}\n"
        "- {transport: http, parameters: {interface: sendgrid, secrets: {key: sendgrid}}, to: mx}\n"
    )
    result = CliRunner().invoke(queued, ["check", "-c", str(config)])
    assert result.exit_code == 2
    for mistake in (
        "shaping.yaml:3: routes[0].parameters: no secret 'sendgird'; did you mean 'sendgrid'?",
        "shaping.yaml:4: routes[1].to: is for smtp and lmtp; http has `parameters`",
    ):
        assert mistake in result.stderr
