"""Times as people write them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queued.cli.options.written_time import parse_written_time, shown_time

BERLIN = ZoneInfo("Europe/Berlin")
NOW = datetime(2026, 11, 30, 23, 30, tzinfo=UTC)  # the next day in Berlin


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The time zone of the machine is that of Berlin."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def shown(text: str, *, whole_days: bool = False) -> str:
    return shown_time(parse_written_time(text, NOW, whole_days=whole_days))


@pytest.mark.parametrize(
    "text",
    [
        "2026-12-24 18:00", "24.12.2026 18:00", "24. 12. 2026, 18:00", "24 Dec 2026 18:00",
        "24th December 2026 at 6 pm", "Dec 24, 2026 6:00 PM", "2026/12/24 18:00",
        "24/12/2026 18:00", "12/24/2026 6pm", " 2026-12-24T18:00 ", "20261224T180000",
        "2026-W52-4T18:00",
    ],
)  # fmt: skip
def test_a_time_is_one_of_the_machine(machine: None, text: str) -> None:
    assert shown(text) == "2026-12-24 18:00:00 +01:00 (CET)"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-07-01 9:00", "2026-07-01 09:00:00 +02:00 (CEST)"),
        ("2026-07-01 9:00 america/new_york", "2026-07-01 09:00:00 -04:00 (America/New_York)"),
        ("2026-07-01T09:00 Asia/Kolkata", "2026-07-01 09:00:00 +05:30 (Asia/Kolkata)"),
        ("2026-07-01 9:00 -0330", "2026-07-01 09:00:00 -03:30"),
        ("2026-07-01 9:00 UTC+1", "2026-07-01 09:00:00 +01:00"),
        ("2026-07-01 9:00 UTC", "2026-07-01 09:00:00 +00:00 (UTC)"),
        ("2026-10-25T02:30:15.5+01:00", "2026-10-25 02:30:15 +01:00"),
        ("tomorrow 9:00", "2026-12-02 09:00:00 +01:00 (CET)"),
        ("tomorrow 9:00 America/New_York", "2026-12-01 09:00:00 -05:00 (America/New_York)"),
        ("yesterday 9:00", "2026-11-30 09:00:00 +01:00 (CET)"),
        ("today 12 am", "2026-12-01 00:00:00 +01:00 (CET)"),
        ("in 2h", "2026-12-01 02:30:00 +01:00 (CET)"),
        ("in 2 days 30 minutes", "2026-12-03 01:00:00 +01:00 (CET)"),
    ],
)
def test_times_with_a_zone_and_from_now(machine: None, text: str, expected: str) -> None:
    assert shown(text) == expected


def test_a_day_begins_at_midnight(machine: None) -> None:
    assert shown("2027-01-31", whole_days=True) == "2027-01-31 00:00:00 +01:00 (CET)"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("03/04/2026 9:00", "it may be 2026-04-03 09:00 or 2026-03-04 09:00"),
        ("3-4-2026 9:00", "it may be 2026-04-03 09:00 or 2026-03-04 09:00"),
        ("24 Dec", "the year is missing"),
        ("Dec 24", "the year is missing"),
        ("24. December 18:00", "the year is missing"),
        ("1 Dec 9am Europe/Berlin", "the year is missing"),
        ("24.12. 18:00", "the year is missing"),
        ("2027-03-28 02:30", "there is no 02:30 on 2027-03-28"),
        ("2026-03-08 02:30 America/New_York", "there is no 02:30 on 2026-03-08"),
        ("2026-10-25 02:30", "twice on 2026-10-25, .* 2026-10-25 02:30.02:00 or .01:00"),
        ("2026-10-25T02:30", "twice on 2026-10-25"),
        ("24.12.26 18:00", "the year with four digits"),
        ("24 Dec 26 18:00", "the year with four digits"),
        ("2026-12-24", "the time of day is missing"),
        ("tomorrow", "the time of day is missing"),
        ("tomorrow 9", "as in tomorrow 9:00 or tomorrow 9 pm"),
        ("18:00", "the date is missing, as in today 18:00"),
        ("2026-02-30 18:00", "no calendar has the day 2026-02-30"),
        ("2026-13-01T00:00:00Z", "no calendar has the day 2026-13-01"),
        ("24 Decembre 2026 18:00", "did you mean december"),
        ("24 Ju 2026 18:00", "no month is ju"),
        ("2026-12-24 24:00", "24:00 is no time of day"),
        ("2026-12-24 13 pm", "13 pm is no time of day"),
        ("2026-12-24 18:00 CET", "the time zone CET is unknown"),
        ("2026-12-24 18:00 Europe/Berln", "did you mean Europe/Berlin"),
        ("2026-12-24 18:00 +01:00 Europe/Berlin", "it has two time zones"),
        ("2026-12-24 18:00+15:00", "no time zone has the offset"),
        ("2026-12-24T18:00+15:00", "no time zone has the offset"),
        ("9999-12-31 23:59 -05:00", "too far"),
        ("0001-01-01 00:00", "before 1970"),
        ("in 40000d", "a duration is at most"),
        ("in a while", "no duration"),
        ("soon", "it is no time such as"),
        ("", "it is no time such as"),
    ],
)
def test_what_has_no_reading_or_two_is_refused(machine: None, text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_written_time(text, NOW)


FORMS = ("%Y-%m-%d %H:%M:%S", "%d.%m.%Y %H:%M:%S", "%d %b %Y %I:%M:%S %p", "%B %d, %Y %H:%M:%S",
         "%Y-%m-%dT%H:%M:%S")  # fmt: skip


@given(st.datetimes(datetime(1971, 1, 1), datetime(2999, 1, 1)), st.sampled_from(FORMS))
def test_a_time_is_read_as_it_was_written_unless_the_clocks_change(at: datetime, form: str) -> None:
    local = at.replace(microsecond=0, tzinfo=BERLIN)
    text = f"{local.strftime(form)} Europe/Berlin"
    if local.replace(fold=0).utcoffset() == local.replace(fold=1).utcoffset():
        assert parse_written_time(text, NOW) == local
    else:
        with pytest.raises(ValueError, match="the clocks go"):
            parse_written_time(text, NOW)


@given(st.text() | st.text(st.sampled_from("0123456789 :./-+TZapmDecin")))
def test_any_text_is_a_time_with_its_zone_or_refused(text: str) -> None:
    try:
        found = parse_written_time(text, NOW, BERLIN, whole_days=True)
    except ValueError:
        return
    assert found.astimezone(UTC) == found
    assert shown_time(found)
