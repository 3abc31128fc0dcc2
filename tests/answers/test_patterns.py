"""Patterns of answers.yaml: those that are refused, their matches and their time."""

from __future__ import annotations

import re
import time

import pytest

from queued.config import shipped_answers
from queued.config.answer_text import MAX_SEARCHED_CHARACTERS, plain_words
from queued.config.answers import compile_patterns, parse_pattern
from tests.answers.corpus import samples

SHIPPED = [text for book in shipped_answers() for rule in book.rules for text in rule.text or ()]


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("x*", "matches the empty text"),
        ("(?=x)y", "is no regular expression"),
        ("(?<!x)y", "is no regular expression"),
        (r"(a|b)\1", "is no regular expression"),
        ("a{2000}", "is no regular expression"),
        ("(?:[^x]{1,100}.{1,10}){1,90}", "is no regular expression"),
        ("a" * 501, "more than 500 characters"),
        ("(a", "is no regular expression"),
        ("a)|(b", "is no regular expression"),
        ("\udcff", "is no regular expression"),
        (550, "write it in quotes"),
    ],
)
def test_a_pattern_that_makes_no_sense_is_refused(source: object, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_pattern(source)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("Mailbox (is )?FULL", "the mailbox full"),
        (r"\S{3}\Wfull", "box full"),
        (r"(?P<Word>quota)", "over quota"),
        ("a.*b", "a" + "x" * 900 + "b"),
        ("too (?:many|much) .{0,40}(?:from|by)", "too many messages from"),
        ("Älter", "viel älter"),
    ],
)
def test_a_pattern_finds_its_text(source: str, text: str) -> None:
    assert compile_patterns(["no(?P<Word>thing)|never", source])(text.encode())


@pytest.mark.parametrize("source", ["(a+)+c", "a.*b.*c.*d", "(?:a?){40}a{40}c", "(.{0,30}x){9}y"])
def test_the_time_of_a_pattern_is_linear(source: str) -> None:
    search = compile_patterns([source])
    for text in (
        b"a" * MAX_SEARCHED_CHARACTERS,
        b"ab" * (MAX_SEARCHED_CHARACTERS // 2),
        b"abx " * (MAX_SEARCHED_CHARACTERS // 4),
    ):
        begun = time.process_time()
        assert search(text) is None
        assert time.process_time() - begun < 1.0  # without a bound it would take years


def test_shipped_patterns_match_what_python_matches() -> None:
    replies = [plain_words(each.answer[0].text)[0].encode("ascii", "replace") for each in samples()]
    for source in SHIPPED:
        search, expected = compile_patterns([source]), re.compile(source.encode(), re.IGNORECASE)
        for reply in replies:
            assert bool(search(reply)) == bool(expected.search(reply)), (source, reply)
