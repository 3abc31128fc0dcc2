"""Single cases of composed mail: attached messages, encodings, keys, repeated words, names."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from pgmta import Attachment, Mail, SubmissionError, TemplateMail, enqueue
from pgmta.client.mail_json import mail_json
from pgmta.compose.mime import MessageIdentity, compose_head
from pgmta.compose.parts import parts_of
from pgmta.compose.template import compile_template
from pgmta.store.admin.migrate import migrate
from tests.sql.test_composed import SOURCE, put_template
from tests.support.bad_mail import GOOD_PARTS, GOOD_TEMPLATE
from tests.support.database import OCTETS, fresh_database
from tests.support.queuectl import Command
from tests.support.rows import column, fetch


@pytest.fixture
def db(db: psycopg.Connection) -> psycopg.Connection:
    """A database with the template `receipt`."""
    put_template(db, "receipt", SOURCE)
    return db


def test_an_attached_message_goes_as_it_is(db: psycopg.Connection) -> None:
    for octets, bits in (
        (b"Subject: x\r\n\r\n\\303\r\n", ""),
        (b"Subject: \xc3\r\n\r\nx\r\n", " 8bit"),
    ):
        forwarded = Attachment("a.eml", octets, "message/rfc822")
        number = enqueue(db, Mail(**GOOD_PARTS, attachments=[forwarded]))
        tail, params, message_id = fetch(
            db, "SELECT body, params, message_id_header FROM messages WHERE id = %s", number
        )
        assert params["tail"] == f"mixed{bits}"
        identity = MessageIdentity(message_id, datetime(2026, 1, 1, tzinfo=UTC))
        content = compose_head(parts_of(params), identity) + tail
        assert octets in content
        assert (b"\r\nContent-Transfer-Encoding: 8bit\r\n\r\n--=_" in content) == bool(bits)


def test_other_encodings_take_characters_only(server: str) -> None:
    """A worker that reads other octets would stop: no mail would leave any more."""
    with fresh_database(server, options=OCTETS) as uri:
        migrate(uri)
        good = {"to": "ARRAY['b@b.example']", "subject": "'x'", "body": "'x'", "headers": "'{}'"}
        octets = "E'\\377'"
        with psycopg.connect(uri, autocommit=True, client_encoding="UTF8") as db:
            for name, value in {
                "to": f"ARRAY[{octets} || ' <b@b.example>']", "subject": octets, "body": octets,
                "headers": f"jsonb_build_object('X-A', {octets})",
                "attachments": f"ARRAY[({octets}, 'a/b', 'x', NULL)::pgmta.submit_attachment]",
            }.items():  # fmt: skip
                given = ", ".join(
                    f'"{key}" => {text}' for key, text in {**good, name: value}.items()
                )
                with pytest.raises(
                    psycopg.errors.InvalidParameterValue, match=f"^{name}: it has oct"
                ):
                    db.execute(f"SELECT pgmta.submit_mail('a@b.example', {given})".encode())
            db.execute(
                "SELECT pgmta.submit_mail('a@b.example', ARRAY['b@b.example'], 'Grüße', 'ä')"
            )


def test_a_long_line_of_an_attached_message_is_found_anywhere(db: psycopg.Connection) -> None:
    for before in (0, 64_530, 65_536 - 500):
        for octets, refused in ((998, False), (999, True)):
            content = b"A: b\r\n" + b"\r\n" * (before // 2) + b"\xff" * octets + b"\r\n"
            mail = Mail(**GOOD_PARTS, attachments=[Attachment("a.eml", content, "message/rfc822")])
            if refused:
                with pytest.raises(SubmissionError, match="over 998 octets"):
                    enqueue(db, mail)
            else:
                enqueue(db, mail)


def test_a_key_outlives_a_new_version_of_its_template(db: psycopg.Connection) -> None:
    """A program that repeats a submission after a deployment gets the first id."""
    first = enqueue(db, TemplateMail(**GOOD_TEMPLATE, key="k"))
    db.execute(
        "INSERT INTO templates (name, version, sender, from_field, subject, body, words)"
        " SELECT name, 2, 'other@example.org', from_field, subject, body, words FROM templates"
    )
    assert enqueue(db, TemplateMail(**GOOD_TEMPLATE, key="k")) == first
    for other in ({"version": 1}, {"params": {"name": "Bob", "number": 7}}):
        with pytest.raises(SubmissionError, match="used for another message"):
            enqueue(db, TemplateMail(**{**GOOD_TEMPLATE, **other}, key="k"))


def test_a_number_of_any_length_is_shown(db: psycopg.Connection, command: Command) -> None:
    (number,) = fetch(
        db, "SELECT submit_template('receipt', 'b@b.example', '{\"name\": 1e9999, \"number\": 7}')"
    )
    for flags in ([], ["--json"]):
        done = command("show", str(number), "--params", *flags)
        assert done.exit_code == 0, done.output
        assert "1" + "0" * 9999 in done.output


def test_words_that_a_template_repeats_count_each_time(db: psycopg.Connection) -> None:
    """A worker has the composed text in memory."""
    put_template(db, "often", replace(SOURCE, subject="x", body="{{name}}\n{{ name }}\n" * 50))
    enqueue(
        db, TemplateMail(template="often", recipient="b@b.example", params={"name": "x" * 41000})
    )
    large = TemplateMail(template="often", recipient="b@b.example", params={"name": "x" * 80000})
    with pytest.raises(SubmissionError, match="params: the words are over 4"):
        enqueue(db, large)


@pytest.mark.parametrize(
    ("part", "place", "character"),
    [("body", "https://a.example/{{a}} ", "é"), ("html", "{{a}}", "é"), ("html", "{{a}}", "'"),
     ("html", '<a href="https://a.example/{{a}}" title="{{a}}">', "'")],
)  # fmt: skip
def test_what_would_not_be_composed_is_not_taken(
    db: psycopg.Connection, part: str, place: str, character: str
) -> None:
    """Else it would go on hold."""
    texts: dict[str, Any] = {"subject": "x", "body": None, part: place * 400}
    source = replace(SOURCE, **texts)
    put_template(db, "often", source)
    template = compile_template(source)

    def too_large(length: int) -> bool:
        try:
            template.fill({"a": character * length}, [])
        except ValueError:
            return True
        return False

    length = bisect_left(range(1 << 14), True, key=too_large)
    params = {"a": character * length}
    with pytest.raises(SubmissionError, match="params: the words are over 4"):
        enqueue(db, TemplateMail(template="often", recipient="b@b.example", params=params))


def test_words_are_bounded_by_the_size_of_mail(db: psycopg.Connection) -> None:
    put_template(db, "often", replace(SOURCE, subject="x", body="{{name}}" * 100))
    db.execute("UPDATE submit_settings SET message_size = 65536")
    mail = TemplateMail(template="often", recipient="b@b.example", params={"name": "x" * 660})
    with pytest.raises(SubmissionError, match="params: the words are over 65536 octets"):
        enqueue(db, mail)


def test_the_command_takes_the_sender_from_any_name(
    db: psycopg.Connection, command: Command
) -> None:
    """It is never the null reverse-path by mistake: no reader would get a DSN."""
    for name in ("Müller, Ann ", "A; B ", "Ann [x] ", ""):
        mailbox = f"{name}<ann@a.example>" if name else "ann@a.example"
        parts = ("--from", mailbox, "--to", "b@b.example", "--subject", "x", "--text", "x")
        done = command("send", *parts)
        assert done.exit_code == 0, done.output
    assert column(db, "SELECT sender FROM queue") == ["ann@a.example"] * 4


@pytest.mark.parametrize("bad", ["\0", "\udcff"])
def test_texts_that_a_database_can_not_have_are_named(bad: str) -> None:
    for name in (*GOOD_PARTS, "html", "cc", "bcc", "reply_to", "from_", "key", "tenant"):
        value = [bad] if name in ("to", "cc", "bcc") else bad
        with pytest.raises(SubmissionError, match=f"^{name}: it has NUL or half"):
            mail_json(Mail(**{**GOOD_PARTS, name: value}))
    for name in ("headers", "metadata"):
        with pytest.raises(SubmissionError, match=f"^{name}: it has NUL"):
            mail_json(Mail(**{**GOOD_PARTS, name: {"a": bad}}))
    with pytest.raises(SubmissionError, match="^attachments: it has NUL"):
        mail_json(Mail(**GOOD_PARTS, attachments=[Attachment(bad, b"x")]))
    for params in ({"name": bad}, {bad: "x"}, {"name": float("nan")}):
        with pytest.raises(SubmissionError, match="^params: "):
            mail_json(TemplateMail(**{**GOOD_TEMPLATE, "params": params}))
