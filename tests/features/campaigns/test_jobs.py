"""Jobs of campaigns: their moves, their feed, and books that are exact at any moment."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import product

import psycopg
import pytest
from psycopg import errors as pg_errors

from pgmta_features.campaigns.states import MOVES, JobStatus
from tests.features.campaigns.campaigns import books, make_campaign, statuses
from tests.support.daemons import ROOT
from tests.support.waiting import until

CREDENTIAL = "ses-1"
LEASE = timedelta(minutes=1)


def start(
    db: psycopg.Connection, campaign: int, rate: float | None = None, jobs: int = 1
) -> list[int]:
    query = "SELECT campaign_start(%s, %s, %s)"
    return [row[0] for row in db.execute(query, (campaign, rate, jobs))]


def call(db: psycopg.Connection, function: str, *values: object) -> int:
    query = f"SELECT {function}({', '.join(['%s'] * len(values))})"
    ((found,),) = db.execute(query, values).fetchall()
    return int(found)


def feed(db: psycopg.Connection, credential: str = CREDENTIAL) -> int:
    while call(db, "campaign_take"):
        pass
    ((fed,),) = db.execute("SELECT fed FROM campaign_feed(%s, 'w')", (credential,)).fetchall()
    return int(fed)


def finalise(db: psycopg.Connection) -> int:
    """Do a round of the end of jobs; return how many ended."""
    return call(db, "campaign_finalise", LEASE)


def end(db: psycopg.Connection, event: str, most: int | None = None, answer: str = "") -> int:
    """Write the outcome of mail in the queue, as settle does; return of how much."""
    states = {"delivered": "sent", "failed": "failed", "unknown": "unknown"}
    rows = db.execute(
        "DELETE FROM queue WHERE id IN"
        " (SELECT id FROM queue ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED)"
        " RETURNING id, message_id, campaign_path(metadata)",
        (most,),
    ).fetchall()
    number = len(rows)
    changed = [] if event == "delivered" else [row[0] for row in rows]
    db.execute(
        "SELECT campaign_outcomes(%s::bigint[], %s::integer[], %s::bigint[], %s::bigint[],"
        " %s, %s, %s, %s, array_fill(now() - interval '5 s', ARRAY[%s]),"
        " array_fill(now(), ARRAY[%s]), %s::bigint[])",
        (
            [row[2][0] for row in rows], [row[2][1] for row in rows], [row[1] for row in rows],
            [row[0] for row in rows], [states[event]] * number,
            [answer == "unknown_user"] * number, [""] * number, [answer] * number, number, number,
            changed,
        ),
    )  # fmt: skip
    return number


def test_a_campaign_goes_from_start_to_its_end(db: psycopg.Connection) -> None:
    campaign = make_campaign(db, 450)
    assert books(db, campaign) == {"unsent": 450}
    start(db, campaign)
    assert statuses(db, campaign) == ["READY"]
    for fed, state in ((200, "SENDING"), (200, "SENDING"), (50, "SENT")):
        assert feed(db) == fed
        assert feed(db) == 0  # there is no room
        assert statuses(db, campaign)[0] in (state, "SENDING")
        assert books(db, campaign)["queued"] == fed
        assert end(db, "delivered") == fed
    feed(db)
    assert statuses(db, campaign) == ["SENT"]
    assert finalise(db) == 1
    assert finalise(db) == 0
    assert statuses(db, campaign) == ["LOGGED"]
    assert books(db, campaign) == {"sent": 450}
    assert not db.execute("SELECT FROM credential_use").fetchall()
    ((words, messages),) = db.execute(
        "SELECT min(error_code), count(DISTINCT message_id) FROM campaign_recipients"
    ).fetchall()
    assert (words, messages) == (None, 450)
    assert call(db, "campaign_delete", campaign) == 450
    assert not db.execute("SELECT FROM campaign_counts").fetchall()


def test_the_mail_is_composed_of_template_and_words(db: psycopg.Connection) -> None:
    campaign = make_campaign(db, 3, deadline="2100-01-01 00:00:00+00", tenant="shop")
    start(db, campaign, 10)
    assert feed(db) == 3
    query = (
        "SELECT q.recipient, q.once, q.on_failed, q.priority, q.tenant, q.metadata, m.params"
        " FROM queue AS q JOIN messages AS m ON m.id = q.message_id ORDER BY q.id LIMIT 1"
    )
    (row,) = db.execute(query).fetchall()
    recipient, once, on_failed, priority, tenant, metadata, params = row
    assert (recipient, once, on_failed, priority, tenant) == (
        "r1@h.example",
        True,
        "remove",
        7,
        "shop",
    )
    assert params["words"] == {"name": "N1"}
    assert metadata["_campaign"].startswith(f"{campaign}.1.")
    assert metadata["_budget"] == "credential:ses-1"
    assert metadata["_deadline"] == "2100-01-01T00:00:00Z"
    assert (metadata["credential"], metadata["campaign"]) == ("ses-1", "news")


def test_two_seconds_of_the_rate_are_in_the_queue(db: psycopg.Connection) -> None:
    campaign = make_campaign(db, 1000)
    start(db, campaign, 50, jobs=3)
    assert feed(db) == 100
    assert end(db, "delivered", 10) == 10
    assert feed(db) == 10
    assert statuses(db, campaign) == ["SENDING", "ENQUEUED", "ENQUEUED"]


def test_one_campaign_has_the_credential(database: str, db: psycopg.Connection) -> None:
    first, second, other = (
        make_campaign(db, 500, name, credential)
        for name, credential in (("one", "c1"), ("two", "c1"), ("three", "c2"))
    )
    for campaign in (first, second, other):
        start(db, campaign, jobs=2)
    barrier = threading.Barrier(8)
    seen: set[tuple[int, ...]] = set()

    def work(_: int) -> None:
        with psycopg.connect(database, autocommit=True) as mine:
            barrier.wait()
            for _ in range(30):
                call(mine, "campaign_take")
                mine.execute("SELECT campaign_feed('c1', 'w'), campaign_feed('c2', 'w')")
                used = mine.execute(
                    "SELECT array_agg(DISTINCT j.campaign_id) FROM campaign_jobs AS j"
                    " JOIN campaigns AS c ON c.id = j.campaign_id"
                    " WHERE c.credential = 'c1' AND j.status IN ('ENQUEUED', 'SENDING')"
                ).fetchall()
                seen.add(tuple(used[0][0] or ()))
                with mine.transaction():
                    ids = mine.execute(
                        "SELECT id FROM queue ORDER BY id LIMIT 20 FOR UPDATE SKIP LOCKED"
                    )
                    rows = [row[0] for row in ids]
                    mine.execute("DELETE FROM queue WHERE id = ANY (%s)", (rows,))
                mine.execute("SELECT campaign_reconcile(1000)")
                finalise(mine)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert seen <= {(), (first,), (second,)}
    assert (first,) in seen
    for campaign in (first, second, other):
        books(db, campaign)


def test_the_check_has_the_moves_of_the_table(db: psycopg.Connection) -> None:
    [job] = start(db, make_campaign(db, 1))
    path = {"READY": "", "ENQUEUED": "ENQUEUED", "SENDING": "ENQUEUED SENDING",
            "SENT": "ENQUEUED SENT", "STOPPED": "STOPPED", "LOGGED": "STOPPED LOGGED"}  # fmt: skip
    move = "UPDATE campaign_jobs SET status = %s, former = 'READY' WHERE id = %s"
    for before, after in product(JobStatus, JobStatus):
        with db.transaction(force_rollback=True):
            for status in path[before].split():
                db.execute("UPDATE campaign_jobs SET status = %s WHERE id = %s", (status, job))
            if before is after or after in MOVES[before]:
                db.execute(move, (after, job))
            else:
                with pytest.raises(pg_errors.CheckViolation, match="campaign_jobs_moves"):
                    db.execute(move, (after, job))


def test_finalise_waits_for_no_operator(database: str, db: psycopg.Connection) -> None:
    """The operator may wait for the job that it ends."""
    campaign = make_campaign(db, 1)
    start(db, campaign)
    assert feed(db) == end(db, "delivered") == 1
    feed(db)
    db.execute("SET lock_timeout = '5s'")
    with psycopg.connect(database) as other:
        other.execute("SELECT campaign_lock(%s)", (campaign,))
        assert finalise(db) == 1


def test_mail_that_is_tried_again_later_leaves_the_credential_to_others(
    db: psycopg.Connection,
) -> None:
    """Its outcome reaches the books later, and what came back waits for the credential again."""
    first, second = make_campaign(db, 4, "one"), make_campaign(db, 3, "two")
    start(db, first)
    assert (feed(db), end(db, "delivered", 1)) == (4, 1)
    start(db, second)
    feed(db)
    later, wait = "UPDATE queue SET status = %s, next_attempt = now() + %s", LEASE / 2
    db.execute(later, ("DEFERRED", wait))
    finalise(db)
    assert (feed(db), statuses(db, second)) == (0, ["READY"]), "due while it has the lease"
    db.execute(later, ("DEFERRED", 2 * LEASE))
    db.execute("UPDATE queue SET status = 'HOLD' WHERE recipient = 'r3@h.example'")
    lease = (
        "UPDATE queue SET status = %s, lease_owner = %s, lease_token = %s, lease_since = %s,"
        " lease_until = %s WHERE recipient = 'r4@h.example'"
    )
    now = datetime.now(UTC)
    db.execute(lease, ("SENDING", "w", 7, now, now + LEASE))
    finalise(db)
    assert (feed(db), statuses(db, second)) == (0, ["READY"]), "one is in flight"
    db.execute(lease, ("DEFERRED", None, None, None, None))
    db.execute("UPDATE queue SET next_attempt = now() + %s", (2 * LEASE,))
    assert finalise(db) == 0
    assert (feed(db), statuses(db, first)) == (3, ["SENT"])
    db.execute(
        "DELETE FROM queue WHERE recipient = 'r2@h.example' AND metadata ->> 'campaign' = 'one'"
    )
    assert call(db, "campaign_reconcile", 1000) == 1
    assert (feed(db), statuses(db, first)) == (0, ["READY"]), "the other campaign has it"
    assert end(db, "delivered") == 5
    assert books(db, first) == {"sent": 3, "unsent": 1}
    feed(db)
    assert finalise(db) == 1
    assert (feed(db), end(db, "failed", answer="policy")) == (1, 1)
    feed(db)
    assert finalise(db) == 1
    assert books(db, first) == {"sent": 3, "errored": 1}
    assert books(db, second) == {"sent": 3}
    assert statuses(db, first) + statuses(db, second) == ["LOGGED", "LOGGED"]


def test_stop_takes_back_what_waits_and_resume_sends_exactly_the_rest(
    db: psycopg.Connection,
) -> None:
    campaign = make_campaign(db, 500)
    [job] = start(db, campaign)
    assert feed(db) == 200
    assert end(db, "delivered", 30) == 30
    db.execute("UPDATE queue SET status = 'SENDING', lease_owner = 'w', lease_since = now(),"
               " lease_token = 7, lease_until = now() + interval '1 minute'"
               " WHERE id IN (SELECT id FROM queue ORDER BY id LIMIT 5)")  # fmt: skip
    flying = [row[0] for row in db.execute("SELECT id FROM queue WHERE lease_token = 7")]
    assert call(db, "campaign_stop", campaign) == 1
    ((may,),) = db.execute("SELECT campaign_may_begin(%s)", (flying,)).fetchall()
    assert may == []
    assert call(db, "campaign_withdraw", 1000) == 165
    assert finalise(db) == 0  # five are under a lease
    assert books(db, campaign) == {"unsent": 465, "queued": 5, "sent": 30}
    db.execute(
        "UPDATE queue SET status = 'QUEUED', lease_owner = NULL, lease_since = NULL,"
        " lease_token = NULL, lease_until = NULL"
    )
    assert call(db, "campaign_withdraw", 1000) == 5
    assert finalise(db) == 1
    assert statuses(db, campaign) == ["LOGGED"]
    assert call(db, "campaign_resume", campaign) == 1
    sent = 30
    while feed(db):
        sent += end(db, "delivered")
    assert sent == 500
    finalise(db)
    assert (statuses(db, campaign), books(db, campaign)) == (["LOGGED"], {"sent": 500})
    ((ids,),) = db.execute("SELECT array_agg(id) FROM campaign_jobs").fetchall()
    assert ids == [job]


@pytest.mark.parametrize(("rate", "number", "waits"), [(50.0, 100, 6), (2.0, 4, 6), (0.1, 2, 42)])
def test_mail_that_waits_for_its_time_takes_room(
    db: psycopg.Connection, rate: float, number: int, waits: int
) -> None:
    """The feed of mail that hangs is slower than the rate, so workers never get more and more."""
    start(db, make_campaign(db, 300), rate=rate)
    lease = (
        "UPDATE queue SET status = 'SENDING', lease_owner = 'w', lease_token = 7,"
        " lease_since = now() - make_interval(secs => %s), lease_until = now() + interval '1 hour'"
    )
    assert feed(db) == number
    assert feed(db) == 0
    db.execute(lease, (waits - 1,))
    assert feed(db) == 0
    db.execute(lease, (waits,))
    assert feed(db) == number
    assert number / waits < rate


def test_a_retry_takes_the_failed_and_unknown_ones_on_request(db: psycopg.Connection) -> None:
    campaign = make_campaign(db, 30)
    start(db, campaign)
    feed(db)
    assert (end(db, "failed", 4, "policy"), end(db, "unknown", 3), end(db, "delivered")) == (
        4,
        3,
        23,
    )
    feed(db)
    assert finalise(db) == 1
    younger = make_campaign(db, 5, "younger")
    start(db, younger)
    assert call(db, "campaign_retry", campaign) == 1
    assert feed(db) == 4
    assert statuses(db, younger) == ["READY"]
    end(db, "delivered")
    feed(db)
    finalise(db)
    assert books(db, campaign) == {"sent": 27, "unknown": 3}
    assert call(db, "campaign_retry", campaign, True) == 1
    assert feed(db) == 3


def test_a_retry_goes_before_a_younger_job_of_the_campaign(db: psycopg.Connection) -> None:
    campaign = make_campaign(db, 800)
    older, _ = start(db, campaign, jobs=2)
    assert (feed(db), end(db, "failed", 150, "policy"), end(db, "delivered")) == (200, 150, 50)
    assert (feed(db), end(db, "delivered")) == (200, 200)
    assert feed(db) == 200  # of the younger job
    finalise(db)
    assert call(db, "job_retry", older) == 1
    assert end(db, "delivered", 160) == 160
    assert feed(db) == 160
    query = (
        "SELECT campaign_path(metadata) = ARRAY[%s, number, %s]::bigint[], number <= 400"
        " FROM queue JOIN campaign_recipients USING (message_id) ORDER BY queue.id OFFSET 40"
    )
    rows = db.execute(query, (campaign, older)).fetchall()
    assert rows == [(True, True)] * 150 + [(False, False)] * 10


def test_what_leaves_the_queue_otherwise_is_found_in_the_log(db: psycopg.Connection) -> None:
    campaign = make_campaign(db, 8)
    start(db, campaign)
    feed(db)
    ids = [row[0] for row in db.execute("SELECT id FROM queue ORDER BY id")]
    for row, event in zip(ids, ("delivered", "failed", "unknown", "cancelled", None), strict=False):
        if event:
            db.execute("SELECT rows_log(ARRAY[%s]::bigint[], %s)", (row, event))
        db.execute("DELETE FROM queue WHERE id = %s", (row,))
    assert call(db, "campaign_reconcile", 1000) == 5
    assert books(db, campaign) == {"sent": 1, "errored": 2, "unknown": 1, "unsent": 1, "queued": 3}
    assert feed(db) == 1  # the one without a trace


@pytest.mark.parametrize(
    ("bounced", "others", "halted"),
    [(11, 89, True), (10, 0, False), (11, 99, False), (11, 0, True)],
)
def test_many_bounces_halt_a_campaign(
    db: psycopg.Connection, bounced: int, others: int, halted: bool
) -> None:
    campaign = make_campaign(db, 400)
    start(db, campaign)
    feed(db)
    with db.transaction():
        end(db, "failed", bounced, "unknown_user")
        end(db, "delivered", others)
    assert call(db, "campaign_halt") == halted
    assert (statuses(db, campaign) == ["STOPPED"]) == halted
    if halted:
        with pytest.raises(pg_errors.ObjectNotInPrerequisiteState, match="is halted"):
            call(db, "campaign_resume", campaign)
        assert call(db, "campaign_resume", campaign, True) == 1
        assert call(db, "campaign_halt") == 0


def test_no_later_answer_hides_too_many_bounces(database: str, db: psycopg.Connection) -> None:
    """Two commits cross the bound together, and the share is below it again at the next look."""
    campaign = make_campaign(db, 400)
    start(db, campaign)
    feed(db)
    with (
        psycopg.connect(database) as one,
        psycopg.connect(database, autocommit=True) as two,
        ThreadPoolExecutor(1) as pool,
    ):
        assert end(one, "failed", 6, "unknown_user") == 6
        one.execute("SET CONSTRAINTS ALL IMMEDIATE")  # as its commit does first
        other = pool.submit(end, two, "failed", 5, "unknown_user")
        until(lambda: db.execute("SELECT FROM pg_locks WHERE NOT granted").fetchall() != [])
        one.commit()
        assert other.result() == 5
    assert end(db, "delivered") == 189
    assert (books(db, campaign), feed(db)) == ({"unsent": 200, "sent": 189, "errored": 11}, 200)
    assert call(db, "campaign_halt") == 1
    query = "SELECT halted_reason FROM campaigns"
    assert db.execute(query).fetchall() == [("11 of 11 answers are hard bounces",)]
    assert call(db, "campaign_resume", campaign, True) == 1
    assert call(db, "campaign_halt") == 0
    assert not db.execute("SELECT FROM campaign_alarms").fetchall()


def test_times_of_a_recipient(db: psycopg.Connection) -> None:
    """When a worker picked the mail, and when the answer came; one that came back has neither."""
    campaign = make_campaign(db, 5)
    start(db, campaign)
    feed(db)
    for event in ("delivered", "failed", "unknown"):
        assert end(db, event, 1) == 1
    ids = [row[0] for row in db.execute("SELECT id FROM queue ORDER BY id")]
    db.execute("SELECT rows_log(ARRAY[%s]::bigint[], 'delivered')", (ids[0],))
    db.execute("UPDATE attempts SET started_at = ended_at - interval '5 s'")
    db.execute("DELETE FROM queue")
    assert call(db, "campaign_reconcile", 10) == 2
    rows = db.execute(
        "SELECT state, extract(epoch FROM answered_at - sent_at)::integer"
        " FROM campaign_recipients ORDER BY number"
    ).fetchall()
    assert rows == [("sent", 5), ("failed", 5), ("unknown", 5), ("sent", 5), ("unsent", None)]


def test_what_is_done_is_not_resumed(db: psycopg.Connection) -> None:
    campaign = make_campaign(db, 10)
    start(db, campaign, jobs=2)
    for _ in range(2):
        assert (feed(db), end(db, "delivered", 9), end(db, "failed", answer="policy")) in (
            (10, 9, 1), (0, 0, 0),
        )  # fmt: skip
    assert finalise(db) == 2
    assert call(db, "campaign_resume", campaign) == 0
    assert call(db, "campaign_retry", campaign) == 1  # the job with the one that failed
    feed(db)
    call(db, "campaign_stop", campaign)
    call(db, "campaign_withdraw", 10)
    assert finalise(db) == 1
    assert call(db, "campaign_resume", campaign) == 1
    assert books(db, campaign) == {"sent": 9, "unsent": 1}


def test_suppressed_recipients_are_neither_fed_nor_left_in_the_queue(
    database: str, db: psycopg.Connection
) -> None:
    """What is locked when its address is suppressed is withdrawn later."""
    campaign = make_campaign(db, 10, scope="news")
    db.execute("INSERT INTO suppressions (address, scope, reason) VALUES"
               " ('r3@h.example', 'news', 'operator'), ('r4@h.example', 'other', 'operator'),"
               " ('r5@h.example', '', 'operator')")  # fmt: skip
    start(db, campaign)
    assert feed(db) == 8
    assert books(db, campaign) == {"queued": 8, "invalid": 2}
    with psycopg.connect(database) as other:
        other.execute("SELECT FROM queue WHERE recipient = 'r6@h.example' FOR UPDATE")
        db.execute("SELECT suppress('r6@h.example', reason => 'unsubscribed')")
    assert books(db, campaign) == {"queued": 8, "invalid": 2}
    assert call(db, "campaign_withdraw", 1000) == 1
    assert books(db, campaign) == {"queued": 7, "invalid": 3}


def test_the_page_has_the_moves_of_the_table() -> None:
    page = (ROOT / "docs" / "programs" / "campaigns.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([A-Z]+) \| ([A-Z, ]+) \|$", page, re.MULTILINE)
    assert {before: tuple(after.split(", ")) for before, after in rows} == {
        before.value: tuple(each.value for each in after) for before, after in MOVES.items()
    }
