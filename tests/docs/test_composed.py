"""docs/programs/composed.md: one receipt goes out of SQL, Python and the shell."""

from __future__ import annotations

import base64
import re
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from email import message_from_bytes, policy
from pathlib import Path

import psycopg
import pytest
import yaml
from click.testing import CliRunner

from pgmta.compose.composed_message import parts_for, read_composition
from pgmta.compose.mime import MessageIdentity, compose_head
from queued.cli.queuectl import main
from tests.support.daemons import ROOT
from tests.support.rows import fetch

PAGE = (ROOT / "docs" / "programs" / "composed.md").read_text(encoding="utf-8")


def block(kind: str) -> str:
    [text] = re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return str(text)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the files that the page names."""
    (logo,) = re.findall(r"decode\('([^']+)', 'base64'\)", PAGE)
    (tmp_path / "logo.png").write_bytes(base64.b64decode(logo))
    (tmp_path / "receipt.pdf").write_bytes(b"%PDF-1.4")
    return tmp_path


@pytest.mark.parametrize("way", ["sql", "python", "sh"])
def test_the_receipt(
    way: str, folder: Path, database: str, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    for _ in range(2):  # the key makes the second one nothing
        if way == "sql":
            db.execute(block("sql").encode())
        elif way == "python":
            done = subprocess.run(
                [sys.executable, "-c", block("python"), database],
                capture_output=True, text=True, timeout=60, check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
        else:
            Path("etc").mkdir(exist_ok=True)
            config = {"environment": {"database": {"uri": database}}}
            Path("etc/queued.yaml").write_text(yaml.safe_dump(config))
            command = shlex.split(block("sh").replace("\\\n", " "))
            assert command[0] == "queuectl"
            shown = CliRunner().invoke(main, command[1:])
            assert shown.exit_code == 0, shown.output
    number, text, message_id, tail = fetch(
        db,
        "SELECT id, jsonb_build_array(template_id, params)::text, message_id_header, body"
        " FROM messages",
    )
    assert number
    identity = MessageIdentity(message_id, datetime(2026, 1, 1, tzinfo=UTC))
    head = compose_head(parts_for(read_composition(text).params, None), identity)
    mail = message_from_bytes(head + tail, policy=policy.default)
    assert mail["From"] == "Shop <shop@example.org>"
    assert mail["To"] == "Ann Müller <ann@example.com>"
    kinds = " ".join(part.get_content_type() for part in mail.walk())
    assert kinds == (
        "multipart/mixed multipart/alternative text/plain multipart/related text/html image/png"
        " application/pdf"
    )
    *_, picture, pdf = mail.walk()
    assert picture["Content-ID"] == "<logo>"
    assert picture.get_content() == (folder / "logo.png").read_bytes()
    assert pdf.get_content() == b"%PDF-1.4"
