"""Texts of DSNs: the shipped ones are whole, and every mistake in a file has its line."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from pgmta.errors import ConfigError
from queued.config import read_config, shipped_texts
from queued.config.bounce_texts import parse_template, read_texts
from queued.daemon.queued import main
from queued.reports.text.compose import compose
from tests.queued.reports.text.dsn_parts import parts
from tests.queued.reports.text.test_compose import NOW, asking, composed, recipient, report

BROKEN = """\
lost
# a comment
[failed]
Subject: {count} of {recipents} {hostnme}

To {sender!r} {recipients} {0} {} {sender.x} {until}
a } c }} {{ {
[delayd]
Subject: x

y
[delayed]

No subject

y
[relayed]
Subject: x
y
[relayed]
Subject: x

y
[delivered]
Subject: only
[reasons]
mailbox_ful: full
mailbox_full: {reason}
policy
spam:
[phrases]
said: {reply} {reason}
"""
MISTAKES = """\
1: stands before the first section, such as [failed]
4: {hostnme}: unknown placeholder; did you mean 'hostname'?
4: {recipents}: unknown placeholder; did you mean 'recipient'?
6: {0}: unknown placeholder; known: hostname, sender, recipient, count, reason, message_id, arrival, until, recipients
6: {sender!r}: unknown placeholder; did you mean 'sender'?
6: {sender.x}: unknown placeholder; did you mean 'sender'?
6: {until}: belongs to [delayed]
6: {}: unknown placeholder; known: hostname, sender, recipient, count, reason, message_id, arrival, until, recipients
7: a single '{': write {{ for a brace
7: a single '}': write }} for a brace
8: [delayd]: unknown section; did you mean 'delayed'?
14: [delayed]: begins without Subject:
19: [relayed]: an empty line is missing after Subject
20: [relayed]: is written twice, first on line 17
24: [delivered]: has no text
27: mailbox_ful: unknown key; did you mean 'mailbox_full'?
28: {reason}: unknown placeholder; no placeholder may stand here
29: 'policy': expected `key: text`
30: 'spam:': expected `key: text`
32: {reason}: unknown placeholder; known: host, reply
"""  # noqa: E501


def check(folder: Path, bounces: str) -> Result:
    (folder / "queued.yaml").write_text(f"bounces: {{{bounces}}}\n", encoding="utf-8")
    return CliRunner().invoke(main, ["check", "-c", str(folder / "queued.yaml")])


def test_every_mistake_has_its_line_and_the_nearest_name(tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "pl.txt").write_text(BROKEN, encoding="utf-8")
    (texts / "klingon-language.txt").write_text("[failed]\n", encoding="utf-8")
    (texts / "cs.txt").write_bytes(b"\xff")
    (texts / "da.txt").write_bytes(b"[failed]\nSubject: x\n\nbell \x07\n")
    (texts / "README").write_text("is not read")
    result = check(tmp_path, "templates: texts")
    assert result.exit_code == 2, (result.stderr, result.exception)
    assert [line.removeprefix("error: ") for line in result.stderr.splitlines()] == [
        f"{texts}/cs.txt: is not UTF-8",
        f"{texts}/da.txt:4: has a control character",
        f"{texts}/klingon-language.txt: 'klingon-language' is no language tag;"
        " write en.txt or pt-BR.txt",
        *(f"{texts}/pl.txt:{line}" for line in MISTAKES.splitlines()),
    ]


@pytest.mark.parametrize(
    ("bounces", "reason"),
    [
        ("templates: none", "bounces.templates: {folder}/none: no such folder"),
        ("templates: .", "bounces.templates: {folder}: has no text, such as en.txt"),
        ("language: dee", "bounces.language: there is no text in 'dee'; did you mean 'de'?"),
        ("language: d_e", "bounces.language: 'd_e' is no language tag; write for example en, de"),
        ("from: 'A <b'", "bounces.from: no domain in 'A <b'"),
        ("from: ä@b.example", "bounces.from: 'ä@b.example' needs SMTPUTF8"),
        ('from: "A\\r\\nX: y <a@b>"', "bounces.from: the name has a control character"),
        ("postmaster: me", "bounces.postmaster: no domain in 'me'"),
        ("delay: [4h, 1h]", "bounces.delay: each time must be longer than the one before it"),
        ("origin: a@b.example", "bounces.origin: unknown key; known: "),
    ],
)
def test_mistakes_in_the_section(tmp_path: Path, bounces: str, reason: str) -> None:
    result = check(tmp_path, bounces)
    assert result.exit_code == 2, (result.stderr, result.exception)
    assert result.stderr.startswith(
        f"error: {tmp_path}/queued.yaml:1: {reason.format(folder=tmp_path)}"
    )


def test_own_texts_go_before_the_shipped_ones(tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "de.txt").write_text(
        "\ufeff[failed]\nSubject: Pech für {recipient}\n\n{{{count}}} {recipients}\n\n  [x]\n",
        encoding="utf-8",
    )
    (texts / "pt-BR.txt").write_text("[reasons]\nunknown_user: Não existe.\n", encoding="utf-8")
    (tmp_path / "queued.yaml").write_text("bounces: {templates: texts, language: pt-BR}\n")
    found = read_config(tmp_path / "queued.yaml").texts
    assert set(found.languages) == {"de", "en", "es", "fr", "pt-br"}
    german = found.choose(["de-AT"])
    assert german.subjects["failed"].fill({"recipient": "bob"}) == "Pech für bob"
    assert german.bodies["failed"].fill({"count": "1", "recipients": "x"}) == "{1} x\n\n  [x]"
    assert german.subjects["delayed"] == shipped_texts().choose(["de"]).subjects["delayed"]
    brazilian = found.choose([])
    assert brazilian.reasons["unknown_user"] == "Não existe."
    assert brazilian.bodies == shipped_texts().choose(["en"]).bodies
    what = report(recipient(), original=asking("pt-BR"))
    dsn = compose(what, found, boundary="b", message_id_header="<9@b.example>", now=NOW)
    assert dict(parts(dsn).text_head)["Content-Language"] == "en"
    assert set(german.written.values()) == {"de"}


def test_the_shipped_languages_are_whole() -> None:
    texts = shipped_texts()
    assert set(texts.languages) == {"de", "en", "es", "fr"}
    for tag, language in texts.languages.items():
        assert read_texts(None, tag).choose([]) is language
        for kind, body in language.bodies.items():
            what = report(recipient(report_kind=kind), kind=kind, original=asking(tag))
            found = parts(composed(what))
            assert dict(found.text_head)["Content-Language"] == tag
            assert {"hostname", "arrival", "recipients"} <= set(body.names)
        english = texts.languages["en"]
        assert tag == "en" or not any(
            getattr(language, name)[key] == text
            for name in ("subjects", "bodies", "reasons")
            for key, text in getattr(english, name).items()
        )
    with pytest.raises(ValueError, match="no text in 'xx'"):
        read_texts(None, "xx")


@given(st.text(st.sampled_from("{}a b!.:[]0\\\n")), st.text())
def test_a_template_is_wrong_or_gives_its_values_as_they_are(text: str, value: str) -> None:
    problems: list[tuple[int, str]] = []
    template = parse_template(text, 3, ["a", "ab"], problems)
    assert (template is None) is bool(problems)
    if template:
        filled = template.fill({"a": value, "ab": value})
        assert filled == "".join(
            literal + (value if place < len(template.names) else "")
            for place, literal in enumerate(template.literals)
        )


def test_a_folder_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "en.txt").mkdir()
    with pytest.raises(ConfigError, match=r"en\.txt: Is a directory"):
        read_texts(tmp_path, "en")
