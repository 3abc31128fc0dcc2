"""`queuectl forget`: the address is looked for in every column of every table."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.types.json import Jsonb

from tests.features.suppressions.campaign import Campaign
from tests.features.suppressions.test_forgetting import run
from tests.support.rows import column, fetch, row
from tests.support.rows import message as put_message

JOE, OTHER = "Joe7q@Bücher.example", "ann@b.example"
KEY, LETTERS = "joe7q@xn--bcher-kva.example", "joe7q@bücher.example"
NEEDLE = "joe7q"
VERP = f"list+joe7q={KEY[6:]}@lists.example"
SPELLED = [
    KEY, f'<"Joe7q"@{KEY[6:].upper()}>', f"x%3CJoe7q%40{KEY[6:]}%3E", LETTERS, VERP,
    f"https://a.example/?e=joe7q%2540{KEY[6:].replace('.', '%252E')}",
]  # fmt: skip

KEPT = {
    "goes with the mail to others": (
        "messages message_chunks campaign_recipients.params api_uploads"
    ),
    "what operators name themselves": (
        "tenant created_by changed_by imported_by campaign_templates.by held_by fed_by"
        " who role login password scram idempotency_keys.submitted_by user_networks rights"
        " mutexes origin scope credential_use"
        " dkim_keys templates.name templates.unsubscribe campaigns.name templates.counts"
        " suppression_scopes event_subscriptions viewer event_tables.name event_retries.name"
        " application_functions.name application_functions.cursor"
        " api_keys.name api_requests.acting webhooks.name queue_counts"
    ),
    "words of ours, and numbers": (
        "event class late status action state kind mode takes former on_failed notify report_kind"
        " error_code error_sub_type suppressions.reason enhanced held_under exempt_from"
        " reach client_protocol tls_version tls_cipher tls_verified halted_reason ids row_ids"
        " transcripts.traces after schema_migrations inquiries inquiry_answers users_version"
        " fingerprint suppression_sieve mailbox_secret login_failures words"
        " campaign_alarms lost_why horizon_holder forget_columns forget_functions link_recipients"
        " event_functions event_history opens closes days zone zone_column pause"
        " api_secrets scopes sees kinds secret earlier_secret webhooks.cursor batch_end event_id"
    ),
    "hosts, domains and processes": (
        "domain sender_domain host hostname worker lease_owner address client networks daemons"
        " workers.owner leased_by broken_tls sts_policies tls_reports suspension_domains"
    ),
}
"""Tables, columns and columns of tables that have no address of a person, or keep it."""

NAMED = {
    "budgets.key", "campaigns.credential", "campaigns.sender", "rules.name", "rules.condition",
    "rules.reason", "rules.quarantine", "suspensions.value", "suspensions.tag", "templates.sender",
    "templates.from_field", "templates.reply_to", "templates.subject", "templates.body",
    "templates.html", "templates.headers", "users.name", "users.senders", "users.metadata",
    "api_keys.senders", "api_keys.credentials", "webhooks.url", "webhooks.condition",
    "webhooks.owner",
    "workers.name", "workers.condition",
    "queue.sender", "queue.recipient", "campaign_recipients.recipient", "suppressions.address",
}  # fmt: skip


def _is_kept(table: str, name: str) -> bool:
    kept = " ".join(KEPT.values()).split()
    address = name == "address" and table in ("recipients", "suppressions")
    return not address and any(each in kept for each in (table, name, f"{table}.{name}"))


def _columns(db: psycopg.Connection) -> Iterator[tuple[str, str]]:
    """Yield all columns that text may be in."""
    yield from db.execute(
        "SELECT c.relname, a.attname"
        " FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid"
        " WHERE c.relnamespace = 'pgmta'::regnamespace AND c.relkind IN ('r', 'p')"
        " AND NOT c.relispartition AND a.attnum > 0 AND NOT a.attisdropped AND a.atttypid NOT IN"
        " (SELECT unnest("
        "'{bigint,int,smallint,bool,timestamptz,date,uuid,real,float8}'::regtype[]))"
        " ORDER BY 1, 2"
    ).fetchall()


def _put(db: psycopg.Connection, table: str, **values: Any) -> None:
    """Insert a row, whatever triggers would say."""
    values = {
        name: json.dumps(value) if isinstance(value, dict) else value
        for name, value in values.items()
    }
    db.execute(
        sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(
            sql.Identifier(table),
            sql.SQL(", ").join(map(sql.Identifier, values)),
            sql.SQL(", ").join(sql.Placeholder() * len(values)),
        ),
        list(values.values()),
    )


_ATTEMPT = {
    "started_at": "now()", "row_id": 1, "message_id": 9, "lease_token": 1, "attempt": 1,
    "code": 550, "event": "failed", "domain": "b.example", "worker": "w", "host": "h",
    "enhanced": "", "command": "RCPT", "reply": "no",
}  # fmt: skip


def _plant_words(db: psycopg.Connection, words: str, number: int) -> None:
    """Put rows of the person, and rows about others with words that have the address."""
    nested = {"a": [{"b": words}, 1, {}, []], words: None}
    mine = _ATTEMPT
    said = {"command": f"RCPT TO:<{words}>", "reply": f"<{words}>: no", "metadata": nested}
    _put(db, "attempts", **mine, sender=JOE, recipient=OTHER)
    _put(db, "attempts", **mine, sender=OTHER, recipient=KEY.upper())
    _put(db, "attempts", **(mine | said), sender=OTHER, recipient=OTHER, client_helo=words,
         message_id_header=words, submitted_by=words, returned=words)  # fmt: skip
    put_message(db, number)
    row(db, number, recipient=JOE, domain=KEY[6:])
    row(db, number, recipient=OTHER, sender=KEY)
    faults = Jsonb([nested])
    row(db, number, recipient=OTHER, metadata=nested, last_reply=words, hold_reason=words,
        orcpt=f"rfc822;{words}", faults=faults)  # fmt: skip
    report = {"message_id": 1, "row_id": 1, "kind": "failed"}
    for names in ((JOE, OTHER, OTHER), (OTHER, KEY, OTHER), (OTHER, OTHER, JOE)):
        people = dict(zip(("recipient", "sender", "sent_to"), names, strict=True))
        _put(db, "reports", **report, **people)
    _put(db, "reports", **report, recipient=OTHER, sender=OTHER, reason=words)
    _put(db, "transcripts", ended_at="now()", message_id=8, lease_token=2, row_ids=[1],
         dialogue=f"12:00 < 550 {words}\n12:01 > QUIT")  # fmt: skip
    _put(db, "audit", who="w", action="delete", condition=f"recipient = '{words}'", details=nested)
    _put(db, "submit_calls", call=f"{number:032}", login="l", fingerprint=1,
         problems={"detail": f"Address: {words}"})  # fmt: skip
    _put(db, "idempotency_keys", tenant="", key=f"welcome:{words}", message_id=1,
         fingerprint=b"x", submitted_by="l")  # fmt: skip
    _put(db, "traces", created_by="w", expires_at="now()", wanted={"recipient": [words]})
    _put(db, "suppressions", address=f"{number}@b.example", reason="operator", source=words)
    _put(db, "mail_events", at="now()", commit=number, place=1, kind="held", detail=nested)
    name = f"shop.t{number}"
    _put(db, "event_subscriptions", name=name, kind="table")
    _put(db, "event_tables", name=name, error=words)
    _put(db, "event_retries", name=name, commit=1, at="now()", place=0, last=1, reason=words)
    _put(db, "application_functions", name=name, login="shop", cursor="1.1.1", error=words)
    _put(db, "api_requests", acting="key:shop", key=f"welcome:{words}", fingerprint=b"x", ids=[1])
    refused = Jsonb([nested])
    _put(db, "api_requests", acting="key:shop", key=name, fingerprint=b"x", ids=[None, None],
         problems=refused, refused_early=refused)  # fmt: skip
    _put(db, "webhooks", name=name, url="https://a.example/", secret="file:x", batch=1,
         cursor="1.1.1", reason=words)  # fmt: skip
    (webhook,) = fetch(db, "SELECT max(id) FROM webhooks")
    _put(db, "webhook_failures", webhook_id=webhook, event_id="1-1", kind="bounced",
         after="1.1.0", reason=words)  # fmt: skip
    _put(db, "budgets", key=f"collector:{number}", rate=1, note=words)
    _put(db, "suspensions", kind="domain", value=f"d{number}", reason=words)
    (campaign,) = fetch(db, "SELECT id FROM campaigns")
    _put(db, "campaign_lists", campaign_id=campaign, number=number, name=words, first=1, last=1)
    db.execute("INSERT INTO campaign_templates (campaign_id, first_message, template_id, reason)"
               " SELECT id, %s, template_id, %s FROM campaigns", (number, words))  # fmt: skip


def _plant_address(db: psycopg.Connection, campaign: Campaign) -> None:
    """Put the address where nothing else is."""
    campaign.add(KEY, OTHER)
    for address in (KEY, LETTERS):
        _put(db, "suppressions", address=address, reason="operator")
    _put(db, "report_counts", sender=KEY, minute="now()", number=1)
    _put(db, "recipients", address=KEY)
    _put(db, "budgets", key=f"route:x:{KEY}", rate=1)


def _plant_envelopes(db: psycopg.Connection) -> None:
    """Put the address into addresses of others: in mail that waits, and in logs of it."""
    message = put_message(db, 100)
    row(db, message, recipient=VERP)
    row(db, message, recipient=OTHER, sender=VERP)
    for sender, recipient in ((VERP, OTHER), (OTHER, VERP)):
        _put(db, "attempts", **_ATTEMPT, sender=sender, recipient=recipient)
        _put(db, "reports", message_id=1, row_id=1, kind="failed", recipient=recipient,
             sender=sender, sent_to=sender)  # fmt: skip
    db.execute(
        "INSERT INTO campaign_recipients (campaign_id, number, recipient, domain, state)"
        " SELECT id, 100 + n, %s, 'lists.example', state FROM campaigns,"
        " unnest('{deferred,sent}'::text[]) WITH ORDINALITY AS s (state, n)", (VERP,),
    )  # fmt: skip
    _put(db, "report_counts", sender=VERP, minute="now()", number=1)
    _put(db, "suppressions", address=VERP, reason="operator")
    _put(db, "suppressions", address=VERP, reason="bounced", tenant="t", released_at="now()")
    # a short address at the end of a text that is as long as it may be
    _put(db, "suppressions", address="long@b.example", reason="operator",
         source=f"{'x' * (200 - len(KEY) - 1)} {KEY}")  # fmt: skip


def _plant_orders(db: psycopg.Connection) -> None:
    """Put the address into orders and texts of operators."""
    _put(db, "budgets", key=f"credential:{KEY}", rate=1)
    for name, quarantine in ((KEY, None), ("q", KEY)):
        _put(db, "rules", name=name, action="quarantine" if quarantine else "hold",
             condition=f"sender = '{KEY}'", reason=KEY, origin="operator",
             quarantine=quarantine)  # fmt: skip
    _put(db, "suspensions", kind="sender", value=KEY, reason="r", tag=KEY)
    _put(db, "users", name=KEY, password="$argon2id$", version=1, senders=[KEY],
         metadata={"mail": KEY})  # fmt: skip
    _put(db, "api_keys", name="shop", scopes=["send"], senders=[KEY], credentials=[KEY])
    _put(db, "webhooks", name="mine", url=f"https://a.example/{KEY}", owner=KEY, batch=1,
         condition={"sender": KEY}, secret="file:x", cursor="1.1.1")  # fmt: skip
    _put(db, "workers", owner="o", name=KEY, action="hold", condition=KEY, reach="true")
    db.execute(
        "UPDATE templates SET sender = %(k)s, from_field = %(k)s, reply_to = %(k)s,"
        " subject = %(k)s, body = %(k)s, html = %(k)s,"
        " headers = jsonb_build_object('X', %(k)s::text)", {"k": KEY},
    )  # fmt: skip
    db.execute("UPDATE campaigns SET sender = %s, credential = %s", (KEY, KEY))


def _places(db: psycopg.Connection) -> set[str]:
    """Return the columns that have the address."""
    found = set()
    for table, name in _columns(db):
        query = sql.SQL("SELECT true FROM {} AS t WHERE t.{}::text ILIKE %s LIMIT 1").format(
            sql.Identifier(table), sql.Identifier(name)
        )
        if db.execute(query, (f"%{NEEDLE}%",)).fetchone():
            found.add(f"{table}.{name}")
    return found


def test_no_column_of_any_table_has_the_address(
    db: psycopg.Connection, database: str, campaign: Campaign, tmp_path: Path
) -> None:
    for number, words in enumerate(SPELLED, 1):
        _plant_words(db, words, number)
    _plant_address(db, campaign)
    _plant_envelopes(db)
    db.execute("SET session_replication_role = replica")  # triggers would judge conditions
    _plant_orders(db)
    db.execute("RESET session_replication_role")
    searched = {f"{table}.{name}" for table, name in _columns(db) if not _is_kept(table, name)}
    assert _places(db) == searched, "each column is planted, or it is in KEPT"
    done = run(tmp_path, database, "forget", JOE, "--dry-run")
    would = json.loads(run(tmp_path, database, "forget", JOE, "--dry-run", "--json").stdout)
    assert _places(db) == searched
    done = run(tmp_path, database, "forget", JOE, "--json")
    assert done.exit_code == 1, done.output
    found = json.loads(done.stdout)
    assert found == would | {"dry_run": False}
    assert _places(db) == NAMED
    log = "SELECT array_agg(DISTINCT {}) FROM attempts WHERE event = 'failed'"
    for name in ("sender", "recipient"):
        assert "list+(forgotten)@lists.example" in fetch(db, log.format(name))[0]
    waits = "SELECT count(*) FROM queue WHERE %s IN (sender, recipient)"
    assert fetch(db, waits, VERP) == (2,), "mail that waits is as it was"
    named = {line.split(" stays in ")[1].split(" ")[0] for line in done.stderr.splitlines()}
    assert named == {place.split(".")[0] for place in NAMED}
    db.execute("SET session_replication_role = replica")  # versions of templates never go by hand
    for table in ("budgets", "rules", "suspensions", "users", "workers", "templates", "campaigns",
                  "api_keys", "webhooks"):  # fmt: skip
        db.execute(sql.SQL("DELETE FROM {} WHERE true").format(sql.Identifier(table)))
    for table, name in (("queue", "sender"), ("queue", "recipient"), ("suppressions", "address"),
                        ("campaign_recipients", "recipient")):  # fmt: skip
        db.execute(sql.SQL("DELETE FROM {} WHERE {} = %s").format(
            sql.Identifier(table), sql.Identifier(name)), (VERP,))  # fmt: skip
    db.execute("RESET session_replication_role")
    again = run(tmp_path, database, "forget", JOE, "--json")
    assert again.exit_code == 0, again.output
    assert _places(db) == set()
    numbers = json.loads(again.stdout)
    del numbers["dry_run"], numbers["stays"], numbers["waits"]
    assert not any(number for noun, number in numbers.items() if noun != "suppressions")
    # the rows of others are there, with all else that they had
    said = column(db, "SELECT reply FROM attempts WHERE reply LIKE '%(forgotten)%: no'")
    assert len(said) == len(SPELLED)
    kept = "SELECT count(*), count(orcpt) FROM queue WHERE sender = 's@a.example'"
    assert fetch(db, kept) == (len(SPELLED), 0)
    wanted = {"a": [{"b": "(forgotten)"}, 1, {}, []], "(forgotten)": None}
    assert wanted in column(db, "SELECT metadata FROM queue")
    entries = column(db, "SELECT condition FROM audit WHERE condition LIKE 'recipient%'")
    assert all("hmac:" in entry for entry in entries)
    assert len(entries) == len(SPELLED)


PATTERNS = [
    ("joe+x@b.example", "joe+x@b.example", True),
    ("joe+x@b.example", "<Joe+X@B.Example>:", True),
    ("joe+x@b.example", '"Joe+x"@b.example.', True),
    ("joe+x@b.example", "joe%2bx%40b.example", True),
    ("joe+x@b.example", "%3Cjoe+x@b.example%3E", True),
    ("joe+x@b.example", "bounce+joe+x=b.example@a.example", True),
    ("joe+x@b.example", "rfc822;joe+2Bx@b.example", True),
    ("joe+x@b.example", "?user=joe+x@b.example&x=1", True),
    ("joe+x@b.example", "joe=2Bx=40b.example", True),
    ("joe@b.example", "%3Cjoe%40b%2Eexample%3E", True),
    ("joe@b.example", "joe%40%62.exam%70le", True),
    ("joe@b.example", "%6Aoe@b.example", True),
    ("joe@b.example", "https://a.example/?e=joe%2540b.example", True),
    ("joe@b.example", "joe=40b=2Eexample", True),
    ("joe@b.example", "&lt;joe&#64;b&#x2e;example&gt;", True),
    ("joe@b.example", "joe&amp;#64;b.example", True),
    ("joe@b.example", r'{"to": "joe\u0040b.example"}', True),
    ("o'joe@b.example", "o&#39;joe@b.example", True),
    ("joe@b.example", "<joe%b.example@relay.example>", True),
    ("joe@b.example", "SRS0=HHH=TT=b.example=joe@relay.example", True),
    ("joe@b.example", "SRS0+HHH=TT=b.example=joe@relay.example", True),
    ("joe@b.example", "relay!b.example!joe", True),
    ("joe@b.example", "SRS0=HHH=TT=b.example=joe.a@relay.example", False),
    ("joe@b.example", "SRS0=HHH=TT=a.b.example=joe@relay.example", False),
    ("joe@b.example", "x%2Bjoe@b.example x%2Ejoe%40b.example %20 &#64; &#9999;", False),
    ("joe+x@b.example", "xjoe+x@b.example", False),
    ("joe+x@b.example", "a.joe+x@b.example", False),
    ("joe+x@b.example", "joe+x@b.example.org", False),
    ("joe+x@b.example", "joe+x@b.examples joe@b.example x@b.example", False),
    ("joe.a@b.example", "joexa@b.example joe.a@bxexample", False),
    ('"a b"@b.example', r'{"x": "\"a b\"@b.example"}', True),
    ("jöe@b.example", "Jöe@b.example j%C3%B6e@b.example", True),
    ("joe@[192.0.2.1]", "<joe@[192.0.2.1]>", True),
    ("joe@[192.0.2.1]", "<joe@[192.0.211]>", False),
    ("+491701234567", "to 00491701234567, not reached", True),
    ("+491701234567", "%2B491701234567", True),
    ("+491701234567", "4917012345678", False),
    ("+491701234567", "1491701234567", False),
]


@pytest.mark.parametrize(("address", "words", "there"), PATTERNS)
def test_spellings(template_db: psycopg.Connection, address: str, words: str, there: bool) -> None:
    query = "SELECT forget_found(%s, forget_pattern(%s))"
    assert fetch(template_db, query, words, address) == (there,)
