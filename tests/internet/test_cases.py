"""Mail to hosts that hang, refuse, lie and promise: a case per file or variant in cases/."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest

from tests.internet.case import Case, Expected, all_cases
from tests.internet.internet import Internet

pytestmark = pytest.mark.needs("nsd", "unbound", "ldnsutils")


def _fits(found: int, wanted: int | str) -> bool:
    if isinstance(wanted, str):
        return found <= int(wanted.removeprefix("<=").strip())
    return found == wanted


def _match(patterns: list[str], lines: list[str], what: str) -> list[str]:
    """Return the errors: each line has to match the pattern at its place."""
    if len(patterns) != len(lines):
        return [f"{what}: {len(lines)}, expected {len(patterns)}: {lines[:5]}"]
    pairs = zip(patterns, lines, strict=True)
    return [f"{what}: {line!r} is not {pattern!r}" for pattern, line in pairs
            if not re.search(pattern, line)]  # fmt: skip


def _of_hosts(internet: Internet, case: Case, expect: Expected) -> list[str]:
    wrong = []
    for name, host in internet.hosts.hosts[case.name].items():
        record = host.record
        commands = "\n".join(record.commands)
        numbers: list[tuple[str, int, Any]] = [
            ("kept", len(record.kept), expect.kept.get(name, 0)),
            ("connections", record.connections, expect.connections.get(name)),
            ("transactions", record.transactions, expect.once.get(name)),
            ("encrypted", sum(m.encrypted for m in record.kept), expect.encrypted.get(name)),
        ]
        wrong += [
            f"{name}: {found} {what}, expected {wanted}; it saw {record.commands[:12]}"
            for what, found, wanted in numbers
            if wanted is not None and not _fits(found, wanted)
        ]
        wrong += [
            f"{name} did not see {pattern!r}: {record.commands[:20]}"
            for pattern in expect.dialogue.get(name, [])
            if not re.search(pattern, commands, re.MULTILINE)
        ]
        each = Counter(r for message in record.kept for r in message.recipients)
        wrong += [f"{name}: {r} has {n} copies" for r, n in each.items() if n > 1]
    if expect.order:
        order = list(dict.fromkeys(internet.hosts.seen[case.name]))
        if order != expect.order:
            wrong.append(f"order of hosts {order}, expected {expect.order}")
    return wrong


def judge(internet: Internet, case: Case, expect: Expected) -> list[str]:
    """Return all differences between what happened and what has to."""
    rows = internet.wait(case)
    wrong = _of_hosts(internet, case, expect)
    queue = [f"{row['status']} {row['last_reply']}" for row in rows]
    wrong += _match(expect.queue, queue, "queue")
    attempts = internet.attempts(case)
    lines = [
        f"{a['event']} {a['command']} {(a['host'] or '-').split('.')[0]} {a['code']} {a['reply']}"
        for a in attempts
    ]
    if expect.attempts:
        wrong += _match(expect.attempts, lines, "attempts")
    for name, wanted in expect.verified.items():
        found = {
            a["tls_verified"]
            for a in attempts
            if (a["host"] or "").partition(":")[0] == case.fqdn(name)
        }
        if found != {wanted}:
            wrong.append(f"{name} was verified by {found}, expected {wanted}; {lines[:3]}")
    if expect.reports is not None:
        counted = internet.reports(case, len(expect.reports))
        wrong += _match(expect.reports, counted, "reports")
    text = internet.explain(case)
    wrong += [f"explain has no {p!r}:\n{text}" for p in expect.explain if not re.search(p, text)]
    events = [entry.get("event") for entry in internet.events(case)]
    wrong += [f"not in the log: {event}" for event in expect.log if event not in events]
    return wrong


@pytest.mark.parametrize("case", all_cases(), ids=lambda case: case.name)
def test_case(internet: Internet, case: Case) -> None:
    """Hosts, queue, attempts and explanation are as the file says, after each step."""
    wrong = judge(internet, case, case.expect)
    assert not wrong, "\n".join([case.about, *wrong])
    for number, step in enumerate(case.then, 2):
        internet.again(case, step.hosts, step.sts, step.wait)
        wrong = judge(internet, case, step.expect)
        assert not wrong, "\n".join([f"{case.about} (step {number})", *wrong])
