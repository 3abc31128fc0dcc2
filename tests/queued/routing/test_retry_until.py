"""Until when a delay notice says that mail is tried."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pgmta.report_row import ReportRow
from queued.config import QueuedConfig, Shaping
from queued.routing.retry_until import RetryUntil

BORN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def row(domain: str, answer_class: str = "", ts: datetime = BORN, **metadata: Any) -> ReportRow:
    values = json.dumps(metadata) if metadata else None
    return ReportRow(
        1, 2, "s@a.example", f"r@{domain}", domain, ts, ts, 1, "", None, False, "delayed", None,
        "451 later", None, None, values, answer_class=answer_class,
    )  # fmt: skip


def config() -> QueuedConfig:
    made = QueuedConfig.model_validate(
        {
            "environment": {"hostname": "mx.example.net"},
            "retry": {
                "intervals": ["1m"], "expire": "5h", "classes": {"mailbox_full": {"expire": "9h"}}
            },
        }
    )  # fmt: skip
    short = {"domain": "otp.example", "to": "mx", "retry": {"intervals": ["5s"], "expire": "10m"}}
    return made.with_files(Shaping.model_validate({"routes": [short]}).with_retry(made.retry))


@pytest.mark.parametrize(
    ("late", "minutes"),
    [
        (row("b.example"), 300),
        (row("b.example", "mailbox_full"), 540),
        (row("otp.example"), 10),
        (row("b.example", _deadline="2026-01-02T03:34:05Z"), 30),
        (row("otp.example", _deadline="2026-01-02T03:34:05Z"), 10),
        (row("b.example", _deadline="soon"), 300),
        (row("b.example", _deadline="2126-01-02T03:34:05Z"), 300),
        (row("\udcff.example"), 300),
    ],
)
def test_the_earlier_of_policy_and_deadline_counts(late: ReportRow, minutes: int) -> None:
    assert RetryUntil().find_end(late, config()) == BORN + timedelta(minutes=minutes)


def test_a_row_from_the_end_of_the_calendar_has_no_such_time() -> None:
    late = datetime(9999, 12, 31, 23, 59, tzinfo=UTC)
    assert RetryUntil().find_end(row("b.example", ts=late), config()) is None
