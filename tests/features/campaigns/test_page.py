"""docs/programs/campaigns.md, section "Recipients": its commands print what the page says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import psycopg
import pytest
import yaml
from click.testing import CliRunner

from queued.cli.queuectl import main
from tests.docs.test_templates import pattern
from tests.support.daemons import ROOT

PAGE = (ROOT / "docs" / "programs" / "campaigns.md").read_text(encoding="utf-8")
SECTION = re.split(r"^## ", PAGE.partition("\n## Recipients\n")[2], flags=re.MULTILINE)[0]


def test_the_commands_about_recipients_print_what_the_page_says(
    tmp_path: Path, database: str, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = re.findall(r"^```\w+ (mails/\S+)\n(.*?)^```", SECTION, re.DOTALL | re.MULTILINE)
    config = {"environment": {"database": {"uri": database}}}
    for name, text in [("etc/queued.yaml", yaml.safe_dump(config)), *files]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    put = CliRunner().invoke(main, ["template", "put", "mails/spring.txt"])
    assert put.exit_code == 0, put.output
    db.execute("SELECT budget_set('credential:ses-1', 50)")
    commands = re.findall(r"^\$ queuectl (.*)\n((?:.*\n)*?)```", SECTION, re.MULTILINE)
    assert len(commands) >= 5
    for command, shown in commands:
        result = CliRunner().invoke(main, shlex.split(command))
        expected = "".join(map(pattern, shown.splitlines()))
        assert re.fullmatch(expected, result.output), (command, result.output)
    db.execute("CREATE TABLE public.customers (recipient text, name text, city text, age int)")
    db.execute("INSERT INTO public.customers VALUES ('e@x.example', 'E', 'K'), ('no', '', '')")
    (sql,) = re.findall(r"^```sql\n(.*?)^```", SECTION, re.DOTALL | re.MULTILINE)
    assert db.execute(sql.encode()).fetchall() == [(2, "no", "it is no mailbox")]
