"""Mail as parts or by a template: refusals by every way in, and mail that can be composed."""

from __future__ import annotations

import email
import email.policy
import re
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg.types.json import Jsonb

from pgmta import Attachment, Mail, SubmissionError, TemplateMail, enqueue
from pgmta.compose import own_fields
from pgmta.compose.composed_message import parts_for, read_composition
from pgmta.compose.mime import MessageIdentity, compose_head
from pgmta.compose.own_fields import is_reserved, is_structured, name_problem, value_problem
from pgmta.compose.parts import parts_of
from pgmta.compose.template import TemplateSource, compile_template
from pgmta.compose.words import WordPlace, fault
from tests.support.bad_mail import BAD_PARTS, BAD_TEMPLATES, GOOD_PARTS, GOOD_TEMPLATE, Bad
from tests.support.queuectl import Command
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
    template = compile_template(source)
    words = {word: sorted(places) for word, places in template.words.items()}
    db.execute(
        "INSERT INTO templates (name, version, sender, from_field, subject, body, html, words,"
        " counts) VALUES (%s, 1, %s, %s, %s, %s, %s, %s, %s)",
        (name, source.sender, source.from_, source.subject, source.body, source.html,
         Jsonb(words), Jsonb(template.counts)),
    )  # fmt: skip


_FILES = """
attachments => ARRAY(SELECT ROW(name, type, content, content_id)::submit_attachment
    FROM unnest(%(names)s::text[], %(types)s::text[], %(contents)s::bytea[], %(content_ids)s::text[]
    ) WITH ORDINALITY AS each (name, type, content, content_id, place) ORDER BY place)
"""


def submit(db: psycopg.Connection, mail: Mail | TemplateMail) -> int:
    """Call submit_mail() or submit_template() itself."""
    name = "submit_mail" if isinstance(mail, Mail) else "submit_template"
    names = [each.name for each in fields(mail) if each.name != "attachments"]
    given = {key: getattr(mail, key) for key in names}
    params = {
        key: Jsonb(x) if isinstance(x, dict) else list(x) if isinstance(x, tuple) else x
        for key, x in given.items()
    }
    types = {"to": "::text[]", "cc": "::text[]", "bcc": "::text[]"}
    words = [f'"{key.rstrip("_")}" => %({key})s{types.get(key, "")}' for key in names]
    for key in ("name", "type", "content", "content_id"):
        params[f"{key}s"] = [getattr(file, key) for file in mail.attachments]
    query = f"SELECT {name}({', '.join(words)}, {_FILES})"
    [(number,)] = db.execute(query.encode(), params).fetchall()
    return int(number)


def test_each_bad_argument_is_named_and_nothing_is_stored(db: psycopg.Connection) -> None:
    assert len(ALL) >= 40
    for make, good, bad in ALL:
        assert submit(db, make(**good))
        bad_mail = make(**{**good, **bad.arguments})
        with pytest.raises(psycopg.errors.InvalidParameterValue) as refused:
            submit(db, bad_mail)
        said = refused.value.diag
        assert said.column_name == bad.argument, bad
        assert bad.words in (said.message_primary or ""), bad
        assert said.message_hint, bad
        with pytest.raises(SubmissionError) as by_python:
            enqueue(db, bad_mail)
        found = by_python.value
        assert found.argument.rstrip("_") == bad.argument
        assert (f"{bad.argument}: {found.reason}", found.hint, found.sqlstate) == (
            said.message_primary, said.message_hint, said.sqlstate
        )  # fmt: skip
    good = {"sender": "'a@b.example'", '"to"': "'{b@b.example}'", "subject": "'x'", "body": "'x'"}
    for null in ("sender", '"to"', "cc", "bcc", "headers", "attachments", "metadata"):
        given = ", ".join(f"{name} => {value}" for name, value in {**good, null: "NULL"}.items())
        words = f"^{null.strip(chr(34))}: "
        with pytest.raises(psycopg.errors.InvalidParameterValue, match=words):
            db.execute(f"SELECT submit_mail({given})".encode())
    assert column(db, "SELECT count(*) FROM messages") == [len(ALL)]


WRONG_TYPES = {
    "to": "a@b.example", "cc": [b"a@b.example"], "body": b"x", "subject": 7, "sender": None,
    "attachments": ["a.txt"], "priority": 1.5, "metadata": [1], "headers": {"X": b"x"}, "once": 1,
    "send_at": "2030-01-01", "key": 7, "tenant": None, "from_": 3,
}  # fmt: skip


def test_values_of_another_type_are_named(db: psycopg.Connection) -> None:
    for name, value in WRONG_TYPES.items():
        with pytest.raises(TypeError, match=f"^{name}: "):
            enqueue(db, Mail(**{**GOOD_PARTS, name: value}))
    with pytest.raises(ValueError, match="send_at: it has no time zone"):
        enqueue(db, Mail(**GOOD_PARTS, send_at=datetime(2030, 1, 1)))
    assert column(db, "SELECT count(*) FROM messages") == [0]


OPTIONS = {
    "recipient": "--to", "body": "--text", "headers": "--header", "attachments": "--attach",
    "params": "--param", "send_at": "--at",
}  # fmt: skip
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


def test_the_command_names_it_too(db: psycopg.Connection, command: Command, tmp_path: Path) -> None:
    tried = 0
    for _, good, bad in ALL:
        if not _typed(bad):
            continue
        arguments = flags({**good, **bad.arguments}, tmp_path)
        done = command("send", *arguments)
        tried += 1
        assert done.exit_code == 2, (bad, done.output)
        option = OPTIONS.get(bad.argument, "--" + bad.argument.replace("_", "-"))
        assert done.stderr.startswith(f"error: {option}: "), (bad, done.stderr)
        assert len(done.stderr.splitlines()) == 1
    assert tried >= 30
    assert column(db, "SELECT count(*) FROM messages") == [0]
    done = command("send", *flags(GOOD_PARTS, tmp_path))
    assert column(db, "SELECT id::text FROM messages") == [done.stdout.strip()]


def test_words_of_a_file_are_as_they_are_written(
    db: psycopg.Connection, command: Command, tmp_path: Path
) -> None:
    file = tmp_path / "words.json"
    words = ("send", "--template", "receipt", "--to", "bob@b.example", "--params-file", str(file))
    for number in ("1.50", "12345678901234567890.10"):
        file.write_text(f'{{"name": "J\u00fcrgen", "number": {number}}}', encoding="utf-8")
        sent = command(*words, "--param", "name=Ann").stdout.strip()
        [stored] = column(db, "SELECT params -> 'words' FROM messages WHERE id = %s", sent)
        assert stored == {"name": "Ann", "number": number}
    file.write_text('{"name": "Ann", "number": NaN}')
    refused = command(*words)
    assert (refused.exit_code, "words.json: no JSON: NaN" in refused.stderr) == (2, True)


def _typed(bad: Bad) -> bool:
    """Whether a command can be given it: click and the shell refuse the others before."""
    if bad.arguments.keys() & {"priority", "on_failed", "params"} or bad.arguments.get("to") == []:
        return False
    files = bad.arguments.get("attachments", ())
    return all(file.name == "a.pdf" and "/" in file.type for file in files)


characters = st.characters(codec="utf-8", exclude_characters="\0")
text = st.text(characters, max_size=60)
mailbox = st.one_of(text, text.map(lambda name: f"{name} <bob@b.example>"))
values = st.one_of(
    text,
    st.sampled_from(["http://a.example/?x=1", "a@b.example", ".."]),
    st.sampled_from((255, 256, 998, 999)).map(lambda size: "x" * size),
)


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
            number = enqueue(template_db, mail)
        except SubmissionError:
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
    own = {"date", "from", "to", "message-id", "mime-version", "content-type"}
    if mail.subject.strip(" "):
        own.add("subject")
    names = {key.lower() for key in found} - {"content-transfer-encoding"}
    assert names == own | {key.lower() for key in mail.headers}
    assert not found.defects
    if name:
        *_, file = found.walk()
        assert file.get_filename() == name.strip()  # the parser strips what str.strip() does


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


def test_sql_and_python_have_the_same_names_of_fields(db: psycopg.Connection) -> None:
    """Each name that one of them has is in the texts of both."""
    texts = column(
        db, "SELECT prosrc FROM pg_proc WHERE proname IN ('header_reserved', 'header_structured')"
    )
    names = {name for source in texts for name in re.findall("[a-z][a-z-]+", source)}
    names |= (
        own_fields.RESERVED_NAMES
        | own_fields.STRUCTURED_NAMES
        | {"X-Order", "Subject", "LIST-Help"}
    )
    names |= {f"{prefix}x" for prefix in own_fields.RESERVED_PREFIXES}
    for name, reserved, structured in db.execute(
        "SELECT name, header_reserved(name), header_structured(name)"
        " FROM unnest(%s::text[]) AS name", (sorted(names),)
    ):  # fmt: skip
        assert (reserved, structured) == (is_reserved(name), is_structured(name)), name


@pytest.mark.parametrize("locale", ["tr", "und-u-ks-level2"])
def test_the_collation_of_the_caller_changes_nothing(db: psycopg.Connection, locale: str) -> None:
    """Also if it has other lower letters, or compares without case."""
    if not column(db, "SELECT true FROM pg_collation WHERE collname = 'tr-x-icu'"):
        pytest.skip("a server without ICU")
    db.execute(
        "CREATE COLLATION public.theirs (provider = icu, deterministic = false, locale ="
        f" '{locale}')".encode()
    )
    calls = (
        "submit_mail('I@I.INFO'~, ARRAY['\"I, I\" <I@I.EXAMPLE>'~, 'i@I.example'], 'I'~, 'x',"
        " cc => ARRAY['I@I.INFO'~], reply_to => 'I <i@i.info>'~, \"from\" => 'I <i@i.info>'~,"
        " key => 'I'~, tenant => 'i'~)",
        "submit_template('receipt'~, 'I <I@I.EXAMPLE>'~, '{\"name\": 1, \"number\": 2}')",
        "submit_template('RECEIPT'~, 'i@i.example', '{}')",
        "submit_mail('i@i.info'~, ARRAY['x'~], 'x', 'x')",
        "header_reserved('MIME-VERSION'~)",
        "header_structured('LIST-ID'~)",
        "submit('A@I.INFO'~, ARRAY['I_@I.EXAMPLE'~], 'Subject: x')",
        "submit('a@b.example'~, ARRAY['\"I I\"@I_I.EXAMPLE'~], 'Subject: x')",
    )
    for call in calls:
        found: list[list[Any]] = []
        for collation in ("", " COLLATE public.theirs"):
            with db.transaction(force_rollback=True):
                try:
                    (answer,) = fetch(db, f"SELECT {call.replace('~', collation)}")
                except psycopg.errors.InvalidParameterValue as error:
                    found.append([error.diag.message_primary, error.diag.message_detail])
                else:
                    made = "SELECT params, sender, recipient, domain FROM queue JOIN messages AS m"
                    rows = db.execute(f"{made} ON m.id = message_id ORDER BY recipient".encode())
                    found.append([answer is not False, *rows])
        assert found[0] == found[1], call
        assert found[0][0], call
