"""Each command that prints a list takes --wide, --json and --csv, and they show the same rows."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import psycopg
import pytest
from click.testing import Result

from pgmta.command import print_csv, print_table, shorten
from pgmta.mail.text import printable
from queued.cli.options.fitted_widths import fitted_widths
from queued.cli.queuectl import main
from tests.support.queuectl import queuectl
from tests.support.rows import attempt, message, row

LONG = "450 4.2.1 greylisted, " + "come back later, " * 20

LISTS: dict[str, tuple[str, ...]] = {
    "apikey list": (),
    "budget list": (),
    "campaign job list": (),
    "campaign list": (),
    "database partition list": (),
    "dkim list": (),
    "events list": (),
    "find": ("--recipient", "r@*"),
    "inspect": ("b.example",),
    "list": (),
    "list --count": ("--by", "domain"),
    "logs": ("--no-follow", "--since", "1d"),
    "rule list": (),
    "status": ("1",),
    "suppression list": (),
    "suppression scope list": (),
    "suspend --list": (),
    "template list": (),
    "template put": ("welcome.txt",),
    "trace": ("--list",),
    "user failures": (),
    "user list": (),
    "webhook list": (),
    "workers": (),
}
"""All commands that print lists, with words that one needs."""


def commands(group: click.Group, *names: str) -> Iterator[tuple[str, click.Command]]:
    for name in group.list_commands(click.Context(group)):
        found = group.get_command(click.Context(group), name)
        assert found
        if isinstance(found, click.Group):
            yield from commands(found, *names, name)
        else:
            yield " ".join((*names, name)), found


def forms(command: click.Command) -> set[str]:
    return {option for each in command.params if each.name == "form" for option in each.opts}


def test_each_list_has_the_three_forms() -> None:
    found = {name: forms(each) for name, each in commands(main) if forms(each) - {"--format"}}
    assert set(found) == set(LISTS)
    assert {frozenset(each) for each in found.values()} == {
        frozenset({"--wide", "--json", "--csv"})
    }
    lists = {
        name
        for name, each in commands(main)
        if name.split()[-1] in ("list", "--count", "--list", "find")
    }
    assert lists <= set(LISTS)


@pytest.fixture
def config(config: Path, db: psycopg.Connection) -> Path:
    """A queued.yaml for a database with a row for most lists."""
    config.with_name("welcome.txt").write_text(
        "---\nname: welcome\nfrom: s@a.example\nsubject: Hello\n---\nWelcome.\n"
    )
    message(db, 1)
    row(db, 1, recipient="r@b.example", status="DEFERRED", last_reply=LONG, metadata={"k": "v"})
    row(db, 1, recipient="s@b.example")
    attempt(db, 9, 2, enhanced="4.2.1", reply=LONG, **{"class": "greylisted"})
    db.execute("""
        INSERT INTO traces (created_by, expires_at, wanted) VALUES ('me', now() + '1h', '{}');
        INSERT INTO rules (name, action, condition, reason, origin, created_by)
            VALUES ('r', 'hold', 'false', 'because', 'operator', 'me');
        INSERT INTO workers (owner, name, action, reach) VALUES ('h:1', 'w', 'deliver', 'true');
        INSERT INTO event_subscriptions (name, kind) VALUES ('shop.took', 'function');
        INSERT INTO webhooks (name, url, secret, batch, cursor)
            VALUES ('shop', 'https://shop.example/events', 'file:shop', 100, '1.1.1');
    """)
    db.execute("INSERT INTO event_retries (name, commit, at, place, last, reason)"
               " VALUES ('shop.took', 7, now(), 0, 1, %s)", [LONG])  # fmt: skip
    db.execute("UPDATE webhooks SET reason = %s", [LONG])
    return config


def run(config: Path, name: str, *words: str) -> Result:
    more = [str(config.parent / word) if word.endswith(".txt") else word for word in LISTS[name]]
    return queuectl(config, *name.split(), *more, *words)


def text(value: Any) -> str:
    if isinstance(value, dict | list | bool):
        return json.dumps(value, default=str, ensure_ascii=False)
    return "" if value is None else str(value)


def test_csv_has_the_values_of_json(config: Path) -> None:
    for name in LISTS:
        table, wide, as_json, as_csv = (
            run(config, name, *f) for f in ((), ("--wide",), ("--json",), ("--csv",))
        )
        assert table.exit_code in (0, 1), table.stderr
        assert {each.exit_code for each in (wide, as_json, as_csv)} == {table.exit_code}
        rows: Any
        if name == "logs":
            rows = [json.loads(line) for line in as_json.stdout.splitlines()]
        elif name in ("inspect", "workers"):
            key = "connections" if name == "inspect" else name
            rows = json.loads(as_json.stdout)[key]
        else:
            rows = json.loads(as_json.stdout or "[]")
        lines = list(csv.DictReader(io.StringIO(as_csv.stdout)))
        volatile = ("lag", "version", "new")  # they differ between two calls
        assert [{k: v for k, v in line.items() if k not in volatile} for line in lines] == [
            {k: text(v) for k, v in each.items() if k not in volatile} for each in rows
        ], name
        assert "…" not in wide.stdout
        assert len(wide.stdout.splitlines()) == len(table.stdout.splitlines())


def test_lines_fit_a_terminal_of_80_columns(
    config: Path, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe gets longer lines."""
    db.execute(
        "UPDATE attempts SET sender = 'newsletter@marketing.example',"
        " recipient = 'r@customer-of-ours.example', message_id_header = '<1234567890@a.example>'"
    )
    db.execute(
        "INSERT INTO suspensions (kind, value, reason, tag, created_by, until) VALUES"
        " ('mx', '*.provider.example', 'they throttle us, ticket 4711', 'provider', 'ann', now())"
    )
    run(config, "template put")
    piped = {name: run(config, name) for name in LISTS}
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda _: True, raising=False)
    for name in LISTS:
        shown = run(config, name)
        assert shown.exit_code == piped[name].exit_code, name
        assert len(shown.stdout.splitlines()) == len(piped[name].stdout.splitlines()), name
        assert name == "logs" or max(map(len, shown.stdout.splitlines()), default=0) <= 80, name


def test_least_columns_go_and_texts_are_shortened() -> None:
    header = ["ID", "AT", "SENDER", "REPLY"]
    rows = [["1" * 20, "2026-11-28 08:00:00+0000", "s" * 40, "r" * 60]]
    assert fitted_widths(header, rows, 150) == {0: 20, 1: 24, 2: 40, 3: 60}
    assert fitted_widths(header, rows, 100) == {0: 20, 1: 24, 2: 25, 3: 25}
    assert fitted_widths(header, rows, 65, least=[3]) == {0: 20, 1: 24, 2: 17}
    assert fitted_widths(header, rows, 10) == {0: 20, 1: 24, 2: 10, 3: 10}


def test_columns_of_wide_characters_and_of_combining_marks_are_aligned(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A terminal shows each of the former in two columns, and the latter in none."""
    names = ["日本@b.example", "e\u0301@b.example", "é…@b.example"]
    print_table(["WHO", "N"], [[name, 1] for name in names])
    header, *lines = capsys.readouterr().out.splitlines()
    assert header == "WHO             N"
    assert lines == ["日本@b.example  1", "e\u0301@b.example     1", "é…@b.example    1"]
    assert shorten("日本語テキスト", 6) == "日本 …"
    assert shorten("日本語", 6) == "日本語"
    assert fitted_widths(["WHO"], [[names[0]]], 80) == {0: 14}


def test_no_value_of_csv_is_a_formula(capsys: pytest.CaptureFixture[str]) -> None:
    """Senders and replies are texts of strangers, and a spreadsheet would compute some of them."""
    hostile = ['=HYPERLINK("http://x")', "+1+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1"]
    plain = ["-1", "+49", "-1.5e-3", "a=b", "'", "", -5, -0.5, None]
    print_csv([{"value": each, "n": 1} for each in [*hostile, *plain]])
    found = [each["value"] for each in csv.DictReader(io.StringIO(capsys.readouterr().out))]
    expected = [f"'{printable(each)}" for each in hostile]
    assert found == [*expected, *map(text, plain)]


def test_a_table_cuts_what_a_wide_one_shows(config: Path) -> None:
    for name in ("list", "find", "logs"):
        assert LONG.strip() not in run(config, name).stdout
        assert LONG.strip() in run(config, name, "--wide").stdout
