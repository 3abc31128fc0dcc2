"""Mail as parts or by a template: refusals by every way in, and mail that can be composed."""

from __future__ import annotations

import email
import email.policy
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from psycopg.types.json import Jsonb

from pgmta import Attachment, Mail, Submission, SubmissionError, TemplateMail
from pgmta.compose.composed_message import parts_for, read_composition
from pgmta.compose.mime import MessageIdentity, compose_head
from pgmta.compose.own_fields import name_problem, value_problem
from pgmta.compose.parts import parts_of
from pgmta.compose.template import TemplateSource, compile_template
from pgmta.compose.words import WordPlace, fault
from pgmta.store.admin.migrate import migrate
from pgmta.store.queue.submit import statements
from queued.cli.queuectl import main
from tests.support.bad_mail import BAD_PARTS, BAD_TEMPLATES, GOOD_PARTS, GOOD_TEMPLATE, Bad
from tests.support.database import with_database
from tests.support.rows import column, fetch

SOURCE = TemplateSource(
    sender="shop@example.org", from_="Shop <shop@example.org>", subject="Order {{number}}",
    body="Hello {{name}}\n",
)  # fmt: skip
ALL = [(Mail, GOOD_PARTS, bad) for bad in BAD_PARTS] + [
    (TemplateMail, GOOD_TEMPLATE, bad) for bad in BAD_TEMPLATES
]


@pytest.fixture
def db(db: psycopg.Connection) -> psycopg.Connection:
    """A database with the template `receipt`."""
    put_template(db, "receipt", SOURCE)
    return db


def put_template(db: psycopg.Connection, name: str, source: TemplateSource) -> None:
    words = {word: sorted(places) for word, places in compile_template(source).words.items()}
    db.execute(
        "INSERT INTO templates (name, version, sender, from_field, subject, body, words)"
        " VALUES (%s, 1, %s, %s, %s, %s, %s)",
        (name, source.sender, source.from_, source.subject, source.body, Jsonb(words)),
    )


def submit(db: psycopg.Connection, mail: Mail | TemplateMail) -> int:
    statement = statements()[mail.STATEMENT]
    [(number,)] = db.execute(statement, mail.arguments() | {"wake": False}).fetchall()
    return int(number)


def test_each_bad_argument_is_named_and_nothing_is_stored(db: psycopg.Connection) -> None:
    assert len(ALL) >= 40
    for make, good, bad in ALL:
        assert submit(db, make(**good))
        with pytest.raises(psycopg.errors.InvalidParameterValue) as refused:
            submit(db, make(**{**good, **bad.arguments}))
        said = refused.value.diag
        assert said.column_name == bad.argument, bad
        assert bad.words in (said.message_primary or ""), bad
        assert said.message_hint, bad
    good = {"sender": "'a@b.example'", '"to"': "'{b@b.example}'", "subject": "'x'", "body": "'x'"}
    for null in ("sender", '"to"', "subject", "cc", "bcc", "headers", "attachments", "metadata"):
        given = ", ".join(f"{name} => {value}" for name, value in {**good, null: "NULL"}.items())
        words = f"^{null.strip(chr(34))}: "
        with pytest.raises(psycopg.errors.InvalidParameterValue, match=words):
            db.execute(f"SELECT submit_mail({given})".encode())
    assert column(db, "SELECT count(*) FROM messages") == [len(ALL)]


async def test_python_names_it_too(database: str, db: psycopg.Connection) -> None:
    submission = Submission(database, "app.example.org")
    try:
        for make, good, bad in ALL:
            mails = [make(**good), make(**{**good, **bad.arguments})]
            with pytest.raises(SubmissionError, match=f"^{bad.argument}: .*"):
                await submission.submit(mails)
        with pytest.raises(ValueError, match="send_at: it has no time zone"):
            await submission.submit([Mail(**GOOD_PARTS, send_at=datetime(2030, 1, 1))])
        assert column(db, "SELECT count(*) FROM messages") == [0]
        mails = [Mail(**GOOD_PARTS), TemplateMail(**GOOD_TEMPLATE)]
        ids = await submission.submit(mails)
        assert column(db, "SELECT id FROM messages ORDER BY id") == ids
    finally:
        await submission.close()


FLAGS = {
    "sender": "--sender", "from_": "--from", "to": "--to", "cc": "--cc", "bcc": "--bcc",
    "subject": "--subject", "body": "--text", "reply_to": "--reply-to", "key": "--key",
    "tenant": "--tenant", "template": "--template", "recipient": "--to", "version": "--version",
}  # fmt: skip


def flags(arguments: dict[str, Any], folder: Path) -> list[str]:
    """The options of `queuectl send` for arguments of Python."""
    made: list[str] = []
    for name, value in arguments.items():
        if name in ("params", "headers", "metadata"):
            flag = {"params": "--param", "headers": "--header"}.get(name, "--metadata")
            made += [each for key, text in value.items() for each in (flag, f"{key}={text}")]
        elif name == "attachments":
            (file,) = value
            path = folder / "a.pdf"
            path.write_bytes(file.content)
            picture = ["--picture", f"{file.content_id}={path}"]
            made += picture if file.content_id else ["--attach", f"{path}:{file.type}"]
        elif name == "html":
            made += ["--html", value]
        elif value is not None:
            each = value if isinstance(value, list) else [value]
            made += [part for text in each for part in (FLAGS[name], str(text))]
    return made


def test_the_command_names_it_too(database: str, db: psycopg.Connection, tmp_path: Path) -> None:
    config = tmp_path / "queued.yaml"
    config.write_text(yaml.safe_dump({"environment": {"database": {"uri": database}}}))
    tried = 0
    for _, good, bad in ALL:
        if not _typed(bad):
            continue
        arguments = flags({**good, **bad.arguments}, tmp_path)
        done = CliRunner().invoke(main, ["send", "-c", str(config), *arguments])
        tried += 1
        assert done.exit_code == 2, (bad, done.output)
        assert f"error: {bad.argument}: " in done.stderr, (bad, done.stderr)
        assert len(done.stderr.splitlines()) == 1
    assert tried >= 30
    assert column(db, "SELECT count(*) FROM messages") == [0]
    done = CliRunner().invoke(main, ["send", "-c", str(config), *flags(GOOD_PARTS, tmp_path)])
    assert column(db, "SELECT id::text FROM messages") == [done.stdout.strip()]


def _typed(bad: Bad) -> bool:
    """Whether a command can be given it: click and the shell refuse the others before."""
    if bad.arguments.keys() & {"priority", "on_failed", "params"} or bad.arguments.get("to") == []:
        return False
    files = bad.arguments.get("attachments", ())
    return all(file.name == "a.pdf" and "/" in file.type for file in files)


characters = st.characters(codec="utf-8", exclude_characters="\0")
text = st.text(characters, max_size=60)
mailbox = st.one_of(text, text.map(lambda name: f"{name} <bob@b.example>"))
values = st.one_of(text, st.sampled_from(["http://a.example/?x=1", "a@b.example", "..", "x" * 999]))


@settings(max_examples=150)
@given(
    to=mailbox, subject=text, body=st.none() | text, html=st.none() | text, name=text,
    headers=st.dictionaries(
        st.one_of(text, st.sampled_from(["X-Order", "List-Id", "Content-Type", "tls-required"])),
        text, max_size=2,
    ),
    picture=st.sampled_from([None, "logo", "lo go"]), kind=st.sampled_from(["a/b", "a", "text/x"]),
)  # fmt: skip
def test_what_is_taken_can_be_composed(
    template_db: psycopg.Connection, name: str, picture: str | None, kind: str, **parts: Any
) -> None:
    """Composing can't fail later, and the header has no field that was not given."""
    mail = Mail(
        sender="shop@example.org", from_=f"{name} <shop@example.org>", to=[parts.pop("to")],
        attachments=[Attachment(name or "a", b"x", kind, picture)] if name else [], **parts,
    )  # fmt: skip
    with template_db.transaction(force_rollback=True):
        try:
            number = submit(template_db, mail)
        except psycopg.errors.InvalidParameterValue:
            return
        shown, message_id, tail = fetch(
            template_db,
            "SELECT jsonb_build_array(template_id, params)::text, message_id_header, body"
            " FROM messages WHERE id = %s", number,
        )  # fmt: skip
    composition = read_composition(shown)
    head = compose_head(
        parts_for(composition.params, None),
        MessageIdentity(message_id, datetime(2026, 1, 1, tzinfo=UTC)),
    )
    found = email.message_from_bytes(head + tail, policy=email.policy.default)
    own = {"date", "from", "to", "subject", "message-id", "mime-version", "content-type"}
    names = {key.lower() for key in found} - {"content-transfer-encoding"}
    assert names == own | {key.lower() for key in mail.headers}
    assert not found.defects
    if name:
        *_, file = found.walk()
        assert file.get_filename() == name


@settings(max_examples=100)
@given(st.lists(values, min_size=1, max_size=40))
def test_sql_takes_no_word_that_python_refuses(
    template_db: psycopg.Connection, words: list[str]
) -> None:
    for place in WordPlace:
        answers = template_db.execute(
            "SELECT word, submit_word(word, %s) IS NULL FROM unnest(%s::text[]) AS word",
            (Jsonb([place]), words),
        ).fetchall()
        for word, taken in answers:
            assert not (taken and fault(place, word)), (place, word)
            if place is not WordPlace.ADDRESS:
                assert taken or fault(place, word), (place, word)


@settings(max_examples=100)
@given(st.dictionaries(st.one_of(text, st.sampled_from(["X-A", "List-Id", "Arc-Seal"])), text))
def test_sql_takes_no_field_that_python_refuses(
    template_db: psycopg.Connection, headers: dict[str, str]
) -> None:
    with template_db.transaction(force_rollback=True):
        try:
            template_db.execute("SELECT submit_own_headers(%s)", (Jsonb(headers),))
        except psycopg.errors.InvalidParameterValue:
            return
    for name, value in headers.items():
        assert not name_problem(name)
        assert not value_problem(name, value)
    parts_of({"from": ["", "a@b.example"], "subject": "x", "body": "x", "headers": headers})


def test_an_attached_message_goes_as_it_is(db: psycopg.Connection) -> None:
    for octets, bits in (
        (b"Subject: x\r\n\r\n\\303\r\n", ""),
        (b"Subject: \xc3\r\n\r\nx\r\n", " 8bit"),
    ):
        forwarded = Attachment("a.eml", octets, "message/rfc822")
        number = submit(db, Mail(**GOOD_PARTS, attachments=[forwarded]))
        tail, params, message_id = fetch(
            db, "SELECT body, params, message_id_header FROM messages WHERE id = %s", number
        )
        assert params["tail"] == f"mixed{bits}"
        identity = MessageIdentity(message_id, datetime(2026, 1, 1, tzinfo=UTC))
        content = compose_head(parts_of(params), identity) + tail
        assert octets in content
        assert (b"\r\nContent-Transfer-Encoding: 8bit\r\n\r\n--=_" in content) == bool(bits)


@pytest.mark.parametrize("locale", ["tr", "und-u-ks-level2"])
def test_the_collation_of_the_caller_changes_nothing(db: psycopg.Connection, locale: str) -> None:
    """Also if it compares without case, or has other lower letters."""
    if not db.execute("SELECT true FROM pg_collation WHERE collname = 'tr-x-icu'").fetchone():
        pytest.skip("a server without ICU")
    db.execute(
        "CREATE COLLATION public.theirs (provider = icu, deterministic = false, locale ="
        f" '{locale}')".encode()
    )
    for statement in (
        "SELECT submit_mail({0}, ARRAY[{0}, 'Ann <ann@i.example>'], {0}, {0}, cc => ARRAY[{0}],"
        " reply_to => {0}, tenant => 't', key => {0})",
        'SELECT submit_template(\'receipt\', {0}, \'{{"name": "I", "number": 7}}\', key => {0})',
    ):
        db.execute(statement.format("'I@I.EXAMPLE'::text COLLATE public.theirs").encode())
    for name in ("MIME-VERSION", "RECEIVED", "LIST-ID"):
        (reserved,) = fetch(
            db, "SELECT header_reserved(n) OR header_structured(n)"
            " FROM (SELECT %s COLLATE public.theirs) AS t (n)", name,
        )  # fmt: skip
        assert reserved


def test_other_encodings_take_characters_only(server: str) -> None:
    """A worker that reads other octets would stop: no mail would leave any more."""
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute("CREATE DATABASE octets ENCODING SQL_ASCII LOCALE 'C' TEMPLATE template0")
    try:
        uri = with_database(server, "octets")
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
    finally:
        with psycopg.connect(server, autocommit=True) as admin:
            admin.execute("DROP DATABASE octets WITH (FORCE)")


def test_a_long_line_of_an_attached_message_is_found_anywhere(db: psycopg.Connection) -> None:
    for before in (0, 64_530, 65_536 - 500):
        for octets, refused in ((998, False), (999, True)):
            content = b"A: b\r\n" + b"\r\n" * (before // 2) + b"\xff" * octets + b"\r\n"
            mail = Mail(**GOOD_PARTS, attachments=[Attachment("a.eml", content, "message/rfc822")])
            if refused:
                with pytest.raises(psycopg.errors.InvalidParameterValue, match="over 998 octets"):
                    submit(db, mail)
            else:
                submit(db, mail)


def test_a_key_outlives_a_new_version_of_its_template(db: psycopg.Connection) -> None:
    """A program that repeats a submission after a deployment gets the first id."""
    first = submit(db, TemplateMail(**GOOD_TEMPLATE, key="k"))
    db.execute(
        "INSERT INTO templates (name, version, sender, from_field, subject, body, words)"
        " SELECT name, 2, 'other@example.org', from_field, subject, body, words FROM templates"
    )
    assert submit(db, TemplateMail(**GOOD_TEMPLATE, key="k")) == first
    for other in ({"version": 1}, {"params": {"name": "Bob", "number": 7}}):
        with pytest.raises(psycopg.errors.UniqueViolation, match="used for another message"):
            submit(db, TemplateMail(**{**GOOD_TEMPLATE, **other}, key="k"))


def test_a_number_of_any_length_is_shown(
    database: str, db: psycopg.Connection, tmp_path: Path
) -> None:
    config = tmp_path / "queued.yaml"
    config.write_text(yaml.safe_dump({"environment": {"database": {"uri": database}}}))
    (number,) = fetch(
        db, "SELECT submit_template('receipt', 'b@b.example', '{\"name\": 1e9999, \"number\": 7}')"
    )
    for flags in ([], ["--json"]):
        done = CliRunner().invoke(
            main, ["show", str(number), "--params", "-c", str(config), *flags]
        )
        assert done.exit_code == 0, done.output
        assert "1" + "0" * 9999 in done.output


def test_words_that_a_template_repeats_count_each_time(db: psycopg.Connection) -> None:
    """A worker has the composed text in memory."""
    put_template(db, "often", replace(SOURCE, subject="x", body="{{name}}\n{{ name }}\n" * 50))
    submit(
        db, TemplateMail(template="often", recipient="b@b.example", params={"name": "x" * 41000})
    )
    large = TemplateMail(template="often", recipient="b@b.example", params={"name": "x" * 80000})
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="params: the words are over 4"):
        submit(db, large)


@pytest.mark.parametrize("name", ["Müller, Ann ", "A; B ", "Ann [x] ", ""])
def test_the_command_takes_the_sender_from_any_name(
    database: str, db: psycopg.Connection, tmp_path: Path, name: str
) -> None:
    """It is never the null reverse-path by mistake: nobody would get a DSN."""
    config = tmp_path / "queued.yaml"
    config.write_text(yaml.safe_dump({"environment": {"database": {"uri": database}}}))
    mailbox = f"{name}<ann@a.example>" if name else "ann@a.example"
    done = CliRunner().invoke(
        main, ["send", "-c", str(config), "--from", mailbox, "--to", "b@b.example", "--subject",
               "x", "--text", "x"],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert column(db, "SELECT sender FROM queue") == ["ann@a.example"]


@pytest.mark.parametrize("bad", ["\0", "\udcff"])
def test_texts_that_a_database_can_not_have_are_named(bad: str) -> None:
    for name in (*GOOD_PARTS, "html", "cc", "bcc", "reply_to", "from_", "key", "tenant"):
        value = [bad] if name in ("to", "cc", "bcc") else bad
        with pytest.raises(ValueError, match=f"^{name.rstrip('_')}: it has NUL or half"):
            Mail(**{**GOOD_PARTS, name: value}).arguments()
    for name in ("headers", "metadata"):
        with pytest.raises(ValueError, match=f"^{name}: it has NUL"):
            Mail(**{**GOOD_PARTS, name: {"a": bad}}).arguments()
    with pytest.raises(ValueError, match="^attachments: it has NUL"):
        Mail(**GOOD_PARTS, attachments=[Attachment(bad, b"x")]).arguments()
    for params in ({"name": bad}, {bad: "x"}, {"name": float("nan")}):
        with pytest.raises(ValueError, match="^params: "):
            TemplateMail(**{**GOOD_TEMPLATE, "params": params}).arguments()
