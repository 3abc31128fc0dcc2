"""Mail that is refused, late, delivered: the DSN octet for octet, the rows, the log."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from queued.daemon.queued import main as queued
from tests.bounces.case import CASES, Case, all_cases, matches
from tests.bounces.hosts import Kept
from tests.bounces.house import Group, groups, running

GROUPS = groups(all_cases())
CHECKS = sorted(path.parent for path in CASES.glob("*/check.txt"))
SHOWN = os.environ.get("PGMTA_SHOW_DSNS", "")
"""A folder for the DSNs that came, to be made into expectations."""


def _lines(wanted: list[str] | None, found: list[str], what: str) -> list[str]:
    if wanted is None:
        return []
    fit = len(wanted) == len(found) and all(
        matches(line.encode(), text.encode(), b"") for line, text in zip(wanted, found, strict=True)
    )
    return [] if fit else ["", f"{what}:", *found, "expected:", *wanted]


def _dsns(case: Case, group: Group, kept: list[Kept]) -> list[str]:
    """Each DSN is one of the expected ones, and each of these has come."""
    originals = [group.content(case, mail) for mail in case.mail]
    left = list(case.dsns)
    wrong = []
    for dsn in kept:
        fitting = [
            pattern
            for pattern in left
            if any(matches(pattern, dsn.content, original) for original in originals)
        ]
        if fitting:
            left.remove(fitting[0])
        else:
            wrong += ["", "unexpected DSN:", dsn.content[:20_000].decode("utf-8", "replace")]
    wrong += [f"\nno such DSN came:\n{pattern.decode()}" for pattern in left]
    return wrong


def _show(case: Case, kept: list[Kept]) -> None:
    for number, dsn in enumerate(kept, 1):
        path = Path(SHOWN) / f"{case.name}.{number}.eml"
        path.write_bytes(dsn.content[:100_000].replace(b"\r\n", b"\n"))


@pytest.mark.slow
@pytest.mark.parametrize("cases", GROUPS.values(), ids=GROUPS)
def test_cases(cases: list[Case], server: str, template: str, tmp_path: Path) -> None:
    """DSNs, rows, log, reports and commands are as the directory of each case says."""
    wrong = []
    with running(tmp_path, server, template, cases) as group:
        for case in cases:
            try:
                found = _judge(case, group)
            except AssertionError as error:
                found = [str(error)]
            if found:
                wrong += [f"\n===== {case.name}: {case.about}", *found]
    assert not wrong, "\n".join(wrong)


def _judge(case: Case, group: Group) -> list[str]:
    """Return all differences between what happened and what has to."""
    if case.command:
        group.wait(case, case.settled, 0)
        group.queuectl(case, case.command)
    kept = group.wait(case, case.rows, len(case.dsns))
    if SHOWN:
        _show(case, kept)
    wrong = _dsns(case, group, kept)
    wrong += _lines(case.rows, group.rows(case), "rows")
    wrong += _lines(case.log, group.attempts(case), "log")
    wrong += _lines(case.reports, group.reports(case), "reports")
    wrong += _lines(case.mails, [dsn.mail for dsn in kept], "MAIL of DSNs")
    wrong += [f"not a null reverse-path: {d.mail}" for d in kept if "FROM:<> " not in d.mail]
    for host, patterns in case.saw.items():
        commands = "\n".join(case.hosts[host].hop.commands)
        wrong += [
            f"{host} did not see {pattern!r}: {commands[:2000]}"
            for pattern in patterns
            if not re.search(pattern, commands, re.MULTILINE)
        ]
    if case.all_in_one:
        named = {
            name
            for dsn in kept
            for name in re.findall(rb"^Final-Recipient: rfc822; (\S+)", dsn.content, re.MULTILINE)
        }
        if (len(kept), len(named)) != (1, case.all_in_one):
            wrong.append(f"{len(named)} recipients in {len(kept)} DSNs")
    return wrong


@pytest.mark.parametrize("folder", CHECKS, ids=lambda folder: folder.name)
def test_check(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`queued check` names every mistake in texts with file and line."""
    monkeypatch.chdir(folder)
    result = CliRunner().invoke(queued, ["check", "-c", "queued.yaml"])
    assert result.stderr == (folder / "check.txt").read_text(encoding="utf-8")
    assert result.exit_code == 2
