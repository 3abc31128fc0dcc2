"""Events in the log and the books: any order and number of times, and bounds."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import errors as pg_errors

from tests.features.callbacks.provided import HOST, Provided, attempt, note
from tests.support.rows import column, message, row
from tests.support.waiting import until

KINDS = ("delivered", "bounced", "failed", "complained")
MAILS = 3  # the last of them with an unknown outcome


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, MAILS - 1), st.sampled_from(KINDS)), max_size=8),
        max_size=4,
    )
)
def test_any_order_and_number_of_times_is_as_the_model(
    provided: Provided, batches: list[list[tuple[int, str]]]
) -> None:
    db = provided.db
    db.execute("TRUNCATE suppressions")
    db.execute("DELETE FROM campaign_recipients")
    db.execute("DELETE FROM attempts")
    provided._number = 0
    first = [provided.take(event="delivered" if n < MAILS - 1 else "unknown") for n in range(MAILS)]
    said: dict[int, list[str]] = {number: [] for number in first}
    for batch in batches:
        events = [(first[at], kind) for at, kind in batch]
        outcomes = provided.note(events)
        for number, kind, outcome in _in_order(events, outcomes):
            before = said[number]
            known = kind in before or (kind == "failed" and "bounced" in before)
            assert outcome == ("known" if known else "new")
            before.append(kind)
    states = []
    for number, kinds in said.items():
        failed = {"bounced", "failed"} & set(kinds)
        why = "unknown_user" if "bounced" in failed else "other" if failed else None
        assert provided.log(number) == (why, "delivered" in kinds, "complained" in kinds)
        unknown = number == first[-1]
        states.append("failed" if failed else "unknown" if unknown and "delivered" not in kinds
                      else "sent")  # fmt: skip
    expected = {state: states.count(state) for state in states}
    for kind in ("bounced", "complained"):
        if number := sum(kind in kinds for kinds in said.values()):
            expected[kind] = number
    assert provided.books() == expected
    addresses = [f"r{number}@b.example" for number in first]
    assert provided.campaign.suppressed(*addresses) == [
        bool({"bounced", "complained"} & set(kinds)) for kinds in said.values()
    ]


def _in_order(events: list[tuple[int, str]], outcomes: list[str]) -> list[tuple[int, str, str]]:
    found = [(*event, outcome) for event, outcome in zip(events, outcomes, strict=True)]
    return sorted(found, key=lambda each: each[0])


def test_a_known_event_has_a_commit_to_wait_for(provided: Provided) -> None:
    """The first one may be on this server alone, and the provider is told that it is noted."""
    number = provided.take()
    provided.note([(number, "bounced")])
    with provided.db.transaction():
        assert provided.note([(number, "bounced")]) == ["known"]
        assert column(provided.db, "SELECT pg_current_xact_id_if_assigned() IS NOT NULL") == [True]


def test_codes_of_a_late_failure(provided: Provided) -> None:
    number = provided.take()
    assert provided.note([(number, "delivered"), (number, "failed")]) == ["new", "new"]
    found = provided.db.execute(
        "SELECT state, error_code, error_sub_type, bounced FROM campaign_recipients"
    ).fetchone()
    assert found == ("failed", "7", "sub", False)
    assert column(provided.db, "SELECT returned FROM attempts") == ["7 sub words"]
    assert column(provided.db, "SELECT halted_at FROM campaigns") == [None]


def test_halts_count_an_event_once(provided: Provided) -> None:
    numbers = [provided.take() for _ in range(20)]
    for _ in range(3):
        provided.note([(number, "bounced") for number in numbers[:10]])
    assert provided.books() == {"sent": 10, "failed": 10, "bounced": 10}


def test_only_mail_of_its_hosts_and_tenants(provided: Provided) -> None:
    ours, other = provided.take(tenant="shop"), provided.take(host="api.other.example:443")
    old = provided.take(days=20)
    assert provided.note([(ours, "failed"), (other, "failed"), (99, "failed")]) == [
        "new", "unknown", "unknown",
    ]  # fmt: skip
    assert provided.note([(ours, "delivered")], tenants=["bank"]) == ["unknown"]
    assert provided.note([(ours, "delivered")], tenants=["shop"]) == ["new"]
    assert provided.note([(old, "delivered")]) == ["new"]
    assert provided.books() == {"sent": 2, "failed": 1}


def test_a_row_in_flight_is_early(provided: Provided, db: psycopg.Connection) -> None:
    waiting = row(db, message(db, 50), status="SENDING", lease=60)
    db.execute("UPDATE queue SET id = 150 WHERE id = %s", (waiting,))
    assert provided.note([(50, "delivered")]) == ["early"]
    db.execute("UPDATE queue SET status = 'DEFERRED', lease_until = NULL")
    assert provided.note([(50, "delivered")]) == ["unknown"]


@pytest.mark.parametrize("kinds", [["delivered"], ["failed", "delivered"], ["delivered", "failed"]])
@pytest.mark.parametrize("status", ["DEFERRED", "HOLD", "SENDING"])
def test_a_delivery_settles_an_unknown_outcome(
    provided: Provided, db: psycopg.Connection, status: str, kinds: list[str]
) -> None:
    """A row that waits goes, as by a late outcome of its worker; one in flight stays."""
    number = provided.take(event="unknown")
    lease = {"lease": 60} if status == "SENDING" else {}
    queued = row(db, message(db, number), status=status, **lease)
    db.execute("UPDATE queue SET id = %s WHERE id = %s", (100 + number, queued))
    for _ in range(2):
        for kind in kinds:
            provided.note([(number, kind)])
    gone = status != "SENDING"
    assert column(db, "SELECT count(*) FROM queue") == [0 if gone else 1]
    assert column(db, "SELECT count(*) FROM messages") == [0 if gone else 1]
    assert column(db, "SELECT event FROM attempts") == ["delivered" if gone else "unknown"]
    assert provided.books() == {"failed" if "failed" in kinds else "sent": 1}


def test_a_sender_who_wants_to_know_keeps_the_row(
    provided: Provided, db: psycopg.Connection
) -> None:
    number = provided.take(event="unknown")
    queued = row(db, message(db, number), status="DEFERRED", notify="SUCCESS,FAILURE")
    db.execute("UPDATE queue SET id = %s WHERE id = %s", (100 + number, queued))
    assert provided.note([(number, "delivered")]) == ["new"]
    assert column(db, "SELECT count(*) FROM queue") == [1]


def test_mail_without_a_campaign(provided: Provided, db: psycopg.Connection) -> None:
    attempt(db, 70, "delivered", HOST, "", 0, '{"_campaign": "1.1.1"}')
    attempt(db, 71, "delivered", HOST, "", 0, "{}")
    first = provided.take()
    assert provided.note([(70, "bounced"), (71, "complained")]) == ["new", "new"]
    assert provided.books() == {"sent": 1}  # metadata by hand names a recipient of other mail
    assert provided.log(first) == (None, False, False)
    assert provided.campaign.suppressed("r70@b.example", "r71@b.example") == [True, True]


def test_two_requests_about_the_same_people_do_not_deadlock(
    provided: Provided, database: str
) -> None:
    """Two campaigns have them in another order, and one in the midst is locked at first."""
    db = provided.db
    ours, theirs = ([provided.take() for _ in range(60)] for _ in range(2))
    db.execute("UPDATE attempts SET recipient = 'r' || 121 - message_id || '@b.example'"
               " WHERE message_id > 60")  # fmt: skip
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'"

    def complain(numbers: list[int]) -> set[str]:
        with psycopg.connect(database, autocommit=True) as mine:
            return set(note(mine, [(number, "complained") for number in numbers]))

    with psycopg.connect(database) as operator, ThreadPoolExecutor(2) as pool:
        operator.execute("SELECT suppress('r30@b.example')")
        both = [pool.submit(complain, numbers) for numbers in (ours, theirs)]
        until(lambda: column(db, waiting) == [2])
        operator.commit()
        assert [each.result() for each in both] == [{"new"}, {"new"}]


@pytest.mark.parametrize("role", ["pgmta_smtpd", "pgmta_queued", "pgmta_operator", "pgmta_submit"])
def test_only_the_web_may_note(role: str, provided: Provided) -> None:
    provided.db.execute(f"SET ROLE {role}".encode())
    with pytest.raises(pg_errors.InsufficientPrivilege):
        provided.note([(1, "failed")])
