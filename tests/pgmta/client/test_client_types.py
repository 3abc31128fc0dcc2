"""The public names as a program's imports and its type checker see them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.pgmta.client.test_sync_client import program
from tests.support.daemons import ROOT
from tests.support.waiting import PATIENCE

IMPORTS = """
import sys
import pgmta
loaded = [name for name in sys.modules if name.startswith(("pgmta.", "psycopg", "asyncio"))]
assert not loaded, loaded
pgmta.Client, pgmta.SyncClient, pgmta.enqueue, pgmta.SendResult, pgmta.RecipientStatus
loaded = {name.partition(".")[0] for name in sys.modules}
print(*sorted(loaded & set(sys.argv[1:])))
"""
HEAVY = ("pydantic", "dns", "aiosmtpd", "aiosmtplib", "cryptography", "structlog", "yaml", "click",
         "idna", "nacl", "queued", "smtpd", "sqlalchemy", "django", "opentelemetry")  # fmt: skip


def test_the_client_loads_no_part_of_a_daemon() -> None:
    out, err = program(IMPORTS, *HEAVY).communicate(timeout=PATIENCE)
    assert (out.split(), err) == ([], "")


@pytest.mark.slow
def test_types_of_the_public_names(tmp_path: Path) -> None:
    """mypy refuses a coroutine that is not awaited, and a mail that is none."""
    (tmp_path / "program.py").write_text(TYPED)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-incremental", "program.py"],
        cwd=tmp_path, env={"MYPYPATH": str(ROOT), "PATH": ""}, capture_output=True, text=True,
        timeout=PATIENCE * 2, check=False,
    )  # fmt: skip
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert len(errors) == 2, done.stdout + done.stderr
    assert "[unused-coroutine]" in errors[0]
    assert 'incompatible type "str"; expected "SubmittedMail"' in errors[1]


TYPED = """
from typing import assert_type

import pgmta
import psycopg
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session


async def main(
    one: psycopg.Connection[dict[str, object]],
    two: psycopg.AsyncConnection[tuple[object, ...]],
    three: AsyncSession | AsyncConnection,
    four: Session,
) -> None:
    mail = pgmta.Mail(sender="a@b.example", to=["r@b.example"], subject="x", body="x")
    assert_type(pgmta.enqueue(one, mail), int)
    assert_type(await pgmta.enqueue(two, mail), int)
    assert_type(await pgmta.enqueue(three, mail), int)
    assert_type(pgmta.enqueue(four, mail), int)
    pgmta.enqueue(two, mail)
    async with pgmta.Client("postgresql:///x", patience=5) as client:
        assert_type(await client.send(mail), int)
        mails = [mail, pgmta.RawMail("", ["r@b.example"], b"")]
        assert_type(await client.send_many(mails), list[pgmta.SendResult])
        assert_type(await client.wait([1], timeout=1), dict[int, list[pgmta.RecipientStatus]])
        await client.send("mail")
    with pgmta.SyncClient("postgresql:///x") as threads:
        assert_type(threads.send(mail), int)
        assert_type(threads.status([1])[1][0].state, str)
"""
