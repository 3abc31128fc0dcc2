"""The screen of `queuectl top` at two sizes: figures, keys, and a database that goes away."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import psycopg
import pytest
from click.testing import CliRunner
from textual.pilot import Pilot

from pgmta.errors import StoreUnavailable
from pgmta.postgres.operator import OF_THE_LOG, OperatorConnection, connected
from pgmta_features.top.screen import TopScreen
from queued.cli.queuectl import main
from tests.support.waiting import eventually

SIZES = [(80, 24), (200, 50)]
HOPS = 60
CUT = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE application_name = 'pgmta queuectl' AND datname = current_database()
"""


@pytest.fixture
def figures(db: psycopg.Connection) -> None:
    """Counts of many next hops, attempts of the last seconds, and two workers."""
    db.execute("SET search_path = pgmta")
    for n in range(HOPS):
        db.execute(
            "INSERT INTO queue_counts VALUES (%s, 'DEFERRED', '', %s, %s, now(), %s)",
            [f"hop{n:02}.example", 1000 + n, n, None],
        )
    db.execute("""
        INSERT INTO queue_counts VALUES
            ('old.example', 'QUEUED', '', 7, 7, now() - interval '1 day', now() - interval '3 h'),
            ('old.example', 'HOLD', 'shop', 5, 0, now() - interval '1 day', NULL),
            (E'bad\\x1b[2J[bold].example', 'QUEUED', '', 9000, 0, now(), NULL),
            (NULL, 'QUEUED', NULL, 11, 0, now(), NULL);
        UPDATE queue_counted SET at = now() - interval '34 s', share = 0.25,
            oldest_due = now() - interval '3 h';
        INSERT INTO workers (owner, name, action, reach, handled, in_flight, seen_at) VALUES
            ('h:1', 'all', 'deliver', 'true', 12345, 77, now()),
            ('h:2', 'gone', 'deliver', 'true', 1, 0, now() - interval '5 min');
        INSERT INTO attempts (started_at, ended_at, row_id, message_id, lease_token, attempt, code,
            event, sender, recipient, domain, worker, host, command, enhanced, reply, class)
        SELECT now() - interval '3 s' - interval '1 s' * (n % 5 = 0)::int,
            now() - interval '1 s', n, n, 1, 1, 450,
            CASE n % 5 WHEN 0 THEN 'deferred' WHEN 1 THEN 'failed' ELSE 'delivered' END,
            '', '', 'b.example', 'w', CASE n % 5 WHEN 0 THEN 'slow:25' ELSE 'quick:25' END, '', '',
            '', CASE n % 5 WHEN 0 THEN 'greylisted' WHEN 1 THEN 'unknown_user' END
        FROM generate_series(1, 500) AS n;
    """)  # fmt: skip


def lines(pilot: Pilot[None]) -> list[str]:
    size = pilot.app.size
    strips = pilot.app.screen._compositor.render_strips()
    found = ["".join(segment.text for segment in strip) for strip in strips]
    assert all(len(line) <= size.width for line in found)
    return found


def screen(pilot: Pilot[None]) -> str:
    return "\n".join(lines(pilot))


async def shows(pilot: Pilot[None], what: Callable[[str], object]) -> str:
    async def look() -> str:
        await pilot.pause()
        text = screen(pilot)
        return text if what(text) else ""

    return await eventually(look)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.usefixtures("figures")
async def test_figures_of_the_tables_are_shown(database: str, size: tuple[int, int]) -> None:
    async with TopScreen(lambda: connected(database, OF_THE_LOG)).run_test(size=size) as pilot:
        text = await shows(pilot, lambda t: "12,345" in t and "accepted 0/s" in t)
        assert "delivered 30/s  deferred 10/s  failed 10/s  unknown 0/s" in text
        deferred = sum(range(1000, 1000 + HOPS))
        assert f"QUEUED 9,018  DEFERRED {deferred:,}  SENDING 0  HOLD 5" in text
        due = 7 + sum(range(HOPS))
        counted = r"counted [3-9]\ds ago, estimated from 25 %"  # 30 s ago, on a quick machine
        assert re.search(rf"due {due:,}, the first for 3h; {counted}", text)
        rows = text.splitlines()
        hops = [row.split()[0] for row in rows if ".example" in row]
        assert hops[:2] == ["bad\ufffd[2J[bold].example", f"hop{HOPS - 1}.example"]
        assert len(hops) == (4 if size[1] == 24 else 15)
        assert f"… {HOPS + 3 - len(hops)} more" in text
        [worker] = [row for row in rows if row.startswith("all ")]
        assert worker.split()[1:3] == ["h:1", "deliver"]
        assert worker.split()[-3:] == ["77", "-", "12,345"]
        assert any(row.startswith("gone ") and "5m DEAD" in row for row in rows)
        hosts = [row.split() for row in rows if ":25 " in row]
        assert hosts == [
            ["slow:25", "0", "1.7", "0", "3.00", "greylisted"],
            ["quick:25", "5.0", "0", "1.7", "2.00", "unknown_user"],
        ]
        assert rows[-1].split() == ["q", "Quit", "s", "Sort", "p", "Pause", "h", "Help"]


@pytest.mark.usefixtures("figures")
async def test_keys_sort_pause_help_and_quit(database: str, db: psycopg.Connection) -> None:
    async with TopScreen(lambda: connected(database, OF_THE_LOG)).run_test(size=(80, 24)) as pilot:
        await shows(pilot, lambda t: "12,345" in t)
        await pilot.press("s")
        text = await shows(pilot, lambda t: "sorted by slowest" in t)
        assert re.findall(r"(?m)^\S+\.example", text)[0] == "old.example"
        await pilot.press("s")
        text = await shows(pilot, lambda t: "sorted by name" in t)
        assert re.findall(r"(?m)^\S+\.example", text)[1] == "hop00.example"
        await pilot.press("h")
        await shows(pilot, lambda t: "means of the last 10 seconds" in t)
        await pilot.press("x")
        await shows(pilot, lambda t: "means of the last 10 seconds" not in t)
        await pilot.press("p")
        await shows(pilot, lambda t: "PAUSED" in t)
        db.execute("UPDATE workers SET handled = 54321")
        await pilot.resize_terminal(200, 50)
        assert "12,345" in await shows(pilot, lambda t: "DUE FOR" in t and len(t) > 5000)
        await pilot.press("p")
        await shows(pilot, lambda t: "54,321" in t and "PAUSED" not in t)
        await pilot.press("q")
        await eventually(lambda: pilot.app._exit)


@pytest.mark.slow
@pytest.mark.usefixtures("figures")
async def test_it_goes_on_when_the_database_is_back(database: str, db: psycopg.Connection) -> None:
    away = False

    def connect() -> AbstractAsyncContextManager[OperatorConnection]:
        if away:
            raise StoreUnavailable("no route to host")
        return connected(database, OF_THE_LOG)

    async with TopScreen(connect).run_test(size=(80, 24)) as pilot:
        await shows(pilot, lambda t: "12,345" in t)
        away = True
        db.execute(CUT)
        text = await shows(pilot, lambda t: "DATABASE AWAY: no route to host" in t)
        assert "12,345" in text  # the last figures stay
        away = False
        await shows(pilot, lambda t: "DATABASE AWAY" not in t)


def test_other_commands_do_not_import_textual() -> None:
    code = (
        "import sys, pgmta_features.top.command, queued.cli.queuectl; "
        "print('textual' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_it_needs_a_terminal(database: str) -> None:
    done = CliRunner().invoke(main, ["top", "-c", "/dev/null"])
    assert done.exit_code == 1
    assert "error: top needs a terminal" in done.stderr
