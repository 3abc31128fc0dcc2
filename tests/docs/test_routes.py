"""docs/mail/routes.md: its files are valid, and lead where the page says."""

from __future__ import annotations

import re
from pathlib import Path

from click.testing import CliRunner

from queued.cli.queuectl import main
from queued.config import read_config
from queued.delivery.smtp.smtp_parameters import parameters_of
from queued.routing.routes import Routes
from tests.support.daemons import ROOT
from tests.support.rows import mail

PAGE = (ROOT / "docs" / "mail" / "routes.md").read_text(encoding="utf-8")


def test_the_files_lead_where_the_page_says(tmp_path: Path) -> None:
    for file in re.findall(r"```yaml\n# /etc/pgmta/(\S+)\n(.*?)```", PAGE, re.DOTALL):
        (tmp_path / file[0]).write_text(file[1], encoding="utf-8")
    password = tmp_path / "smarthost.password"
    password.write_text("secret")
    password.chmod(0o640)
    config = read_config(tmp_path / "queued.yaml")
    routes = Routes(config.routes, config.routing)
    mailboxes = routes.find(mail("in.example.org", "x@news.example.org"))
    assert (mailboxes.route, str(to := mailboxes.destination), to.transport) == (
        "mailboxes",
        "[::1]:24",
        "lmtp",
    )
    service = routes.find(mail("example.com", "x@news.example.org"))
    login = parameters_of(service.destination).login
    assert (login and login.password) == "secret"
    assert str(routes.find(mail("example.com", "x@example.org")).destination) == ",".join(
        f"relay{n}.corp.example:25" for n in (1, 2, 3)
    )
    [(command, shown)] = re.findall(r"\$ queuectl (.*)\n(.*?)```", PAGE, re.DOTALL)
    arguments = command.replace("/etc/pgmta", str(tmp_path)).split()
    found = CliRunner().invoke(main, arguments)
    assert found.stdout.startswith(shown)
