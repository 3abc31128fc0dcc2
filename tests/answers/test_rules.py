"""Answer rules: their order, the providers, the tables behind them, and errors without a reply."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from pgmta.errors import Stage
from pgmta.mail.answer_class import AnswerClass
from pgmta.model import Reply
from queued.answers.answer_rules import AnswerRules
from queued.cli.queuectl import main as queuectl
from queued.config import Answers, read_config, shipped_answers
from queued.config.answer_index import AnswerIndex, shipped_index
from queued.config.answer_text import parse_reply, plain_words
from queued.delivery.transport.result import CUT_OFF

HOST = "mx.example.net:25"
SHIPPED = AnswerRules(shipped_index())


def rules(text: str) -> AnswerRules:
    return AnswerRules(AnswerIndex([Answers.model_validate(yaml.safe_load(text))]))


def read(found: AnswerRules, reply: str, host: str = HOST, stage: Stage = Stage.RCPT) -> str:
    answer = found.read_reply(parse_reply(reply), host, stage)
    return f"{answer.answer_class}/{answer.lasting}".removesuffix("/")


def test_the_first_rule_whose_conditions_all_match_decides() -> None:
    found = rules("""
        providers: {house: ["*.house.example", inbox.example]}
        rules:
          - {provider: house, code: 550, text: "FULL|voll", class: mailbox_full, lasting: temporary}
          - {provider: "*.example", enhanced: "5.7.*", class: policy}
          - {enhanced: "*.7.1", command: MAIL, class: sender_refused}
          - {code: [45x, 554], class: other}
          - {code: 5xx, text: [a.b, "b{3}"], class: content}
        enhanced: {"7.9": authentication, "4.7.9": rate_limited, "7.*": spam}
        codes: {550 RCPT: unknown_user, "550": policy, 5xx: other}
    """)
    assert read(found, "550 Mailbox FULL", "mx.house.example:25") == "mailbox_full/temporary"
    assert read(found, "550 ist voll", "MX.HOUSE.example.:25") == "mailbox_full/temporary"
    assert read(found, "550 voll", "inbox.example:2525") == "mailbox_full/temporary"
    assert read(found, "550 voll", "house.example:25") == "unknown_user"  # *. is below it
    assert read(found, "550 5.7.8 no", "a.b.example:25") == "policy"
    assert read(found, "550 5.7.1 no", stage=Stage.MAIL) == "sender_refused"
    assert read(found, "450 4.7.1 no", stage=Stage.MAIL) == "sender_refused"
    assert read(found, "450 full") == read(found, "554 5.1.1 x") == "other"
    assert read(found, "550 A-B") == read(found, "550 xbbbx") == "content"
    assert read(found, "421 4.7.9 x") == "rate_limited"
    assert read(found, "550 5.7.9 x") == "authentication"
    assert read(found, "550 5.7.77 x") == "spam"
    assert read(found, "550 x") == "unknown_user"
    assert read(found, "550 x", stage=Stage.DATA) == "policy"
    assert read(found, "599 x") == "other"
    assert read(found, "421 x") == "other"  # nothing knows it


def test_own_rules_go_before_the_shipped_ones(tmp_path: Path) -> None:
    path = tmp_path / "queued.yaml"
    path.write_text("answers: mine.yaml\n", encoding="utf-8")
    own = "providers: {gmail: mx.mine.example}\nrules:\n  - {code: 550, text: odd, class: spam}\n"
    (tmp_path / "mine.yaml").write_text(f"{own}enhanced: {{1.1: disabled}}\n", encoding="utf-8")
    found = AnswerRules(read_config(path).answering)
    answer = found.read_reply(Reply(550, "how odd"), HOST, Stage.RCPT)
    assert (answer.answer_class, answer.rule) == (AnswerClass.SPAM, "mine.yaml:3")
    assert read(found, "550 5.1.1 x") == "disabled"
    quota = "550 5.4.5 Daily user sending limit exceeded."
    assert read(found, quota, "mx.mine.example:25") == "rate_limited/temporary"
    assert read(found, quota, "a.google.com:25") == "rate_limited"
    assert read(SHIPPED, quota, "a.google.com:25") == "rate_limited/temporary"


@pytest.mark.parametrize(
    ("text", "stage", "permanent", "expected"),
    [
        ("4.4.3 MX of example.net: timeout", Stage.MX, False, "dns"),
        ("5.1.2 domain example.net does not exist", Stage.MX, True, "bad_domain"),
        ("5.1.10 example.net accepts no mail", Stage.MX, True, "bad_domain"),
        ("5.4.4 MX of example.net: no host names: .", Stage.MX, True, "bad_domain"),
        ("4.4.4 mx.example.net has no address", Stage.ADDRESS, False, "dns"),
        ("mx.example.net[192.0.2.1]:25: timeout", Stage.CONNECT, False, "no_connection"),
        ("timeout, no reply to EHLO", Stage.EHLO, False, "no_connection"),
        ("connection closed by peer", Stage.GREETING, False, "no_connection"),
        ("not an SMTP reply: b'x'", Stage.MAIL, False, "protocol"),
        ("4.3.0 HTTP 200 OK <html>", Stage.END_OF_DATA, False, "undecided"),
        ("4.3.0 HTTP 204", Stage.END_OF_DATA, False, "undecided"),
        ("4.4.2 timeout before the answer", Stage.END_OF_DATA, False, "no_connection"),
        ("5.3.4 message of 9 octets is over the next hop's limit of 8", Stage.EHLO, True,
         "too_large"),
        ("5.6.3 the next hop does not know 8BITMIME", Stage.EHLO, True, "content"),
        ("4.7.5 DANE of mx.example.net: no TLSA record matches", Stage.TLS, False, "tls"),
        ("5.7.10 REQUIRETLS: nothing authenticates mx.example.net", Stage.TLS, True, "tls"),
        ("4.7.0 AUTH needs TLS", Stage.AUTH, False, "authentication"),
        ("5.1.3 recipient address is malformed: no domain", Stage.NONE, True, "unknown_user"),
        ("5.1.7 sender address is malformed: no domain", Stage.NONE, True, "sender_refused"),
        ("5.6.0 content can't be sent: bare LF", Stage.NONE, True, "content"),
        ("5.3.0 its message is not in the database", Stage.NONE, True, "other"),
        ("internal error: KeyError: 5", Stage.NONE, False, "other"),
        ("content is gone", Stage.CONTENT, False, "other"),
    ],
)  # fmt: skip
def test_errors_without_a_reply(text: str, stage: Stage, permanent: bool, expected: str) -> None:
    answer = SHIPPED.read_reply(Reply(0, text), HOST, stage, permanent=permanent)
    assert answer.answer_class == expected


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("450 4.2.1 Busy", "rate_limited"),
        ("450 4.2.1 mailbox busy", "rate_limited"),
        ("451 4.2.1 System is too busy, please try again later", "rate_limited"),
        ("421 4.2.1 Host busy", "rate_limited"),
        ("450 4.2.1 Please try again later", "other"),
        ("450 4.2.1 Mailbox temporarily disabled", "disabled"),
        ("550 5.2.1 No", "disabled"),
        ("450 4.1.1 Busy, try later", "rate_limited"),
        ("550 5.1.1 No such user: busybee@b.example", "unknown_user"),
    ],
)
def test_busy_is_no_disabled_mailbox(reply: str, expected: str) -> None:
    assert read(SHIPPED, reply) == expected


def test_an_interrupted_attempt_and_own_rules_for_errors() -> None:
    answer = SHIPPED.read_reply(CUT_OFF.reply, CUT_OFF.host, CUT_OFF.stage)
    assert answer.answer_class is AnswerClass.NO_CONNECTION
    found = rules("rules: [{code: 0, command: connect, text: unreachable, class: dns}]")
    answer = found.read_reply(Reply(0, "Network is unreachable"), HOST, Stage.CONNECT)
    assert answer.answer_class is AnswerClass.DNS


def test_replies_as_people_quote_them() -> None:
    quoted = "550-5.1.1 The account 550-5.1.1 does not 550 5.1.1 exist"
    lines = "550-5.1.1 The account\n550-5.1.1 does not\r\n550 5.1.1 exist\n"
    for text in (quoted, lines, "550 5.1.1 The account 5.1.1 does not 5.1.1 exist"):
        assert plain_words(parse_reply(text).text) == ("the account does not exist", "5.1.1")
    assert parse_reply("no code") == Reply(0, "no code")
    assert parse_reply("550") == Reply(550, "")
    assert plain_words("#5.7.1 no") == ("no", "5.7.1")
    assert plain_words("5.1.2.3 is blocked")[1] == ""  # an address


texts = st.text(st.characters(), max_size=2000) | st.text("5.17 -\n\0aé\ud800", max_size=60)


@given(st.integers(0, 999), texts, texts, st.sampled_from(Stage), st.booleans())
def test_any_text_has_a_class(
    code: int, text: str, host: str, stage: Stage, permanent: bool
) -> None:
    answer = SHIPPED.read_reply(Reply(code, text), host, stage, permanent=permanent)
    assert answer.answer_class in AnswerClass
    assert SHIPPED.read_reply(Reply(code, text), host, stage, permanent=permanent) == answer
    parse_reply(text)


def test_memory_is_bounded() -> None:
    found = AnswerRules(AnswerIndex(shipped_answers()))
    for number in range(10_000):
        reply = Reply(550, f"5.{number % 1000}.1 {number}")
        found.read_reply(reply, f"{number}.example", Stage.RCPT)
    kept = found._known, found._lists, found._index._hosts
    assert all(0 < len(each) <= 4096 for each in kept)


def test_classify_command(tmp_path: Path) -> None:
    path = tmp_path / "queued.yaml"
    path.write_text("", encoding="utf-8")
    arguments = [
        "explain",
        "--reply",
        "-c",
        str(path),
        "550 Ip frequency limited",
        "--host",
        "mx3.qq.com",
    ]
    result = CliRunner().invoke(queuectl, arguments)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[:2] == ["class    rate_limited", "lasting  temporary, whatever the code says"]
    assert lines[2].startswith("rule     shipped answers_providers.yaml:")
    result = CliRunner().invoke(queuectl, [*arguments[:4], "552 x", "--command", "data", "--json"])
    assert yaml.safe_load(result.stdout) == {
        "class": "too_large", "lasting": None, "rule": "codes 552", "code": 552, "enhanced": None,
        "text": "x",
    }  # fmt: skip
    result = CliRunner().invoke(queuectl, [*arguments[:4], "552 x", "--command", "dta"])
    assert (result.exit_code, "did you mean 'DATA'?" in result.stderr) == (2, True)
    result = CliRunner().invoke(queuectl, [*arguments[:4], "250 2.0.0 Ok"])
    assert (result.exit_code, "250 is the code of a success" in result.stderr) == (2, True)
