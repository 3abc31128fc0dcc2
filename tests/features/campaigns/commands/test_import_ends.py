"""Imports that are killed, that meet another one, and that show their progress."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from queued.cli.options.progress_bar import ProgressBar
from tests.features.campaigns.commands.site import Site
from tests.support.rows import column
from tests.support.waiting import until

HEAD = "recipient,name,city\n"
LINES = "".join(f"r{n}@x.example,N{n},K\n" for n in range(30_000))
BUSY = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND {}"


def command(site: Site, *words: str) -> list[str]:
    code = "from queued.cli.queuectl import main; main()"
    return [sys.executable, "-c", code, "campaign", "import", "-c", str(site.path), *words]


def test_a_killed_import_leaves_nothing(site: Site, db: psycopg.Connection) -> None:
    """While it waits for its source it has no transaction."""
    copied = BUSY.format("state = 'idle' AND backend_xmin IS NULL AND query LIKE '%FROM STDIN'")
    query = (
        "SELECT 'r' || n || '@x.example' AS recipient, '' AS name,"
        " CASE n WHEN 30000 THEN pg_sleep(600)::text ELSE '' END AS city"
        " FROM generate_series(1, 30000) AS n"
    )
    with subprocess.Popen(command(site, "news", "--sql", query)) as process:
        until(lambda: column(db, copied) == [1], describe="the end of a COPY")
        process.kill()
    until(lambda: column(db, copied) == [0], describe="the end of the connection")
    assert site.books() == (0, 0, 0)


def test_an_import_beside_another_one_is_refused(site: Site, db: psycopg.Connection) -> None:
    given = """'{"name": "", "city": ""}'::jsonb"""
    with psycopg.connect(site.uri) as first, ThreadPoolExecutor(1) as pool:
        query = f"SELECT campaign_add(1, '{{z@x.example}}', ARRAY[{given}])"
        first.execute(query.encode())
        second = pool.submit(site.run, "import", "news", site.file(HEAD + "a@x.example,,\n"))
        waiting = BUSY.format("wait_event_type = 'Lock'")
        until(lambda: column(db, waiting) == [1], describe="the lock")
        first.commit()
        found = second.result()
    assert found.exit_code == 1
    assert "another import into the campaign has ended meanwhile" in found.stderr
    assert site.recipients() == ["z@x.example"]
    assert site.imported(HEAD + "a@x.example,,\n")["imported"] == 1


@pytest.mark.slow
def test_a_large_list_is_stored_in_batches(site: Site, db: psycopg.Connection) -> None:
    doubled = LINES + LINES.upper() + LINES.replace("@", "@y.")
    found = site.imported(HEAD + doubled)
    assert (found["imported"], found["duplicates"]) == (60_000, 30_000)
    assert len(set(site.recipients())) == 60_000
    assert site.books() == (60_000, 60_000, 1)


def test_the_list_itself_is_not_overwritten(site: Site) -> None:
    path = site.file(HEAD)
    found = site.run("import", "news", path, "--errors", path)
    assert (found.exit_code, found.stderr) == (2, "error: --errors: it is FILE itself\n")


@pytest.mark.slow
def test_a_terminal_has_a_bar(site: Site) -> None:
    """Both bars go again, and only the result stays."""
    outer, inner = pty.openpty()
    words = ["news", site.file(HEAD + LINES * 4)]
    with subprocess.Popen(command(site, *words), stderr=inner, stdout=subprocess.PIPE) as process:
        os.close(inner)
        shown = b""
        try:
            while part := os.read(outer, 4096):
                shown += part
        except OSError:  # the end of a terminal on Linux
            pass
        assert process.stdout
        said = process.stdout.read()
    os.close(outer)
    assert b"imported 30,000 recipients" in said
    text = shown.decode()
    bar = r"reading \[#*-*\] +\d+% [\d,]+ recipients, [\d,]+/s, (now|\d+\w) left"
    assert re.search(bar, text), text[:2000]
    assert text.count("\r\x1b[K") >= 2


def test_a_bar_of_an_unknown_length_beyond_its_end_and_at_once() -> None:
    assert ProgressBar("reading", None, "mails").text(9, 9, 2.0) == "reading 9 mails, 4/s"
    bar = ProgressBar("reading", 10, "mails")
    assert bar.text(20, 20, 1.0) == f"reading [{'#' * 30}] 100% 20 mails, 20/s, now left"
    assert bar.text(0, 0, 0.0) == f"reading [{'-' * 30}]   0% 0 mails, 0/s"
