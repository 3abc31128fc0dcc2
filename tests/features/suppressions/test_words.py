"""The words of proof, known scopes, and who may send mail that suppressions do not stop."""

from __future__ import annotations

import psycopg
import pytest

from tests.features.suppressions.campaign import Campaign
from tests.support.rows import column, fetch


def why(db: psycopg.Connection, *mails: tuple[str, str, str]) -> list[str | None]:
    """The words for each tenant, scope and address."""
    columns = map(list, zip(*mails, strict=True))
    (words,) = fetch(db, "SELECT suppressed_because(%s, %s, %s)", *columns)
    return list(words)


def test_the_oldest_fact_is_the_proof(db: psycopg.Connection, campaign: Campaign) -> None:
    db.execute(
        "SELECT suppress('Ann@b.example', '', 'news', 'unsubscribed', 'campaign 7 recipient 2',"
        " '2026-03-02 10:00+02'),"
        " suppress('ann@b.example', '*', '', 'complained', 'message 12', '2026-04-01 00:00Z'),"
        " suppress('joe@b.example', source => '', at => '2026-03-02 10:00Z')"
    )
    db.execute("SELECT forget_suppressions(mailbox_key('eve@b.example'), '', false)")
    complained = "suppressed since 2026-04-01 00:00 UTC: complained (message 12)"
    words = why(
        db, ("", "news", "ann@B.example"), ("", "transactional", "ann@b.example"),
        ("t", "news", "ann@b.example"), ("", "", "joe@b.example"), ("t", "", "joe@b.example"),
        ("", "", "eve@b.example"), ("", "", ""),
    )  # fmt: skip
    assert words[:5] == [
        "suppressed since 2026-03-02 08:00 UTC: unsubscribed (campaign 7 recipient 2)",
        complained, complained, "suppressed since 2026-03-02 10:00 UTC: operator", None,
    ]  # fmt: skip
    assert str(words[5]).endswith(" UTC: forgotten")
    assert words[6] == "suppressed: forgotten"


def test_scopes_are_declared(db: psycopg.Connection, campaign: Campaign) -> None:
    assert fetch(
        db, "SELECT suppression_scope('digest', 't'), suppression_scope('digest', 't'),"
        " suppression_scope('transactional'), suppression_scope('all', '*')",
    ) == (True, False, False, True)  # fmt: skip
    known = [
        ("news", ""),
        ("digest", "t"),
        ("transactional", "x"),
        ("all", "x"),
        ("digest", "*"),
        ("", "x"),
    ]
    for name, tenant in known:
        db.execute("SELECT suppression_scope_check(%s, %s)", (name, tenant))
    for name, tenant, hint in (
        ("new", "", "Did you mean news?"), ("digest", "", "There is all, news, transactional."),
        ("Transactional ", "t", "Did you mean transactional?"),
    ):  # fmt: skip
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="no such scope") as error:
            db.execute("SELECT suppress('a@b.example', %s, %s)", (tenant, name))
        assert str(error.value.diag.message_hint).startswith(hint)
        assert error.value.diag.column_name == "scope"
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="it is no name"):
        db.execute("SELECT suppression_scope('a b')")


@pytest.mark.parametrize(
    ("statement", "argument", "hint"),
    [
        ("suppress('a@b.example', reason => 'complaint')", "reason", "Did you mean complained?"),
        ("suppress('a@b.example', reason => 'xyz')", "reason", "There is unsubscribed, "),
        ("suppress('a@b.example', 'bad tenant!')", "tenant", "Up to 64 "),
        ("suppress('a@b.example', source => E'a\\nb')", "source", "Give one line."),
        ("suppressions_put('{a@b.example,no}', NULL, NULL)", "address", "Write LOCAL@DOMAIN"),
        ("suppressions_put('{NULL}', NULL, NULL)", "address", "Write LOCAL@DOMAIN"),
        ("suppressions_put('{a@b.example}', NULL, '{a b}')", "scope", "Up to 64 "),
    ],
)
def test_a_bad_suppression_is_refused_by_its_argument(
    db: psycopg.Connection, statement: str, argument: str, hint: str
) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue) as error:
        db.execute(f"SELECT {statement}".encode())
    assert error.value.diag.column_name == argument
    assert str(error.value.diag.message_hint).startswith(hint)


def test_only_operators_exempt_mail(db: psycopg.Connection) -> None:
    db.execute("CREATE ROLE pgmta_test_program IN ROLE pgmta_submit")
    db.execute("CREATE ROLE pgmta_test_operator IN ROLE pgmta_submit, pgmta_operator")
    mail = "SELECT submit_mail('a@b.example', '{c@d.example}', body => 'x', metadata => %s)"
    mails = (
        "SELECT problems FROM submit_mails(jsonb_build_array(jsonb_build_object("
        "'sender', 'a@b.example', 'to', jsonb_build_array('c@d.example'), 'body', 'x',"
        " 'metadata', %s::jsonb)))"
    )
    try:
        db.execute("SET ROLE pgmta_test_program")
        for metadata in ('{"_exempt": 1}', '{"_scope": "news"}'):
            with pytest.raises(psycopg.errors.InvalidParameterValue):
                db.execute(mail, (metadata,))
            assert fetch(db, mails, metadata)[0][0]["argument"] == "metadata"
        db.execute("SET ROLE pgmta_test_operator")
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="_scope"):
            db.execute(mail, ('{"_scope": "", "_exempt": 1}',))
        db.execute(mail, ('{"_exempt": "yes", "a": 1}',))
        assert fetch(db, mails, '{"_exempt": true}') == (None,)
        db.execute("RESET ROLE")
        assert column(db, "SELECT metadata - 'a' FROM queue ORDER BY id") == [
            {"_exempt": "operator pgmta_test_operator: yes"},
            {"_exempt": "operator pgmta_test_operator"},
        ]
    finally:
        db.execute("RESET ROLE")
        db.execute(b"DROP ROLE pgmta_test_program; DROP ROLE pgmta_test_operator")
