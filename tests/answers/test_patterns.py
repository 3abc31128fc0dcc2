"""Patterns of answers.yaml can't take long, and the search before them loses nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queued.config import shipped_answers
from queued.config.answer_pattern import LONGEST, TextPattern, parse_text_pattern

RULES = [rule for book in shipped_answers() for rule in book.rules]
SHIPPED = sorted({p.source: p for rule in RULES for p in rule.text or ()}.items())
WORDS = sorted({n.decode() for _, p in SHIPPED for group in p.needles for n, _ in group})


@pytest.mark.parametrize(
    "source",
    [
        "(a+)+b",
        "(a|a)+b",
        "(a|ab)*c",
        "(?:a?){40}a",
        "a.*b.*c",
        r"\s+\s+x",
        "([a-z]+ ?){1,9}!",
        "(?:(?:x{1,9}){1,9}){1,9}y",
    ],
)
def test_a_pattern_that_can_take_long_is_refused(source: str) -> None:
    with pytest.raises(ValueError, match=r"might take too long, because it can match in .* ways"):
        parse_text_pattern(source)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("x*", "matches the empty text"),
        ("(?=x)y", "look ahead or behind"),
        ("(?<!x)y", "look ahead or behind"),
        (r"(a|b)\1", "reference to a group"),
        ("a{2000}", "more than the first 1024 characters"),
        ("a" * 501, "more than 500 characters"),
        ("(a", "is no regular expression"),
        ("Ä\u0130x", "never matches"),
    ],
)
def test_a_pattern_that_makes_no_sense_is_refused(source: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_text_pattern(source)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("Mailbox (is )?FULL", "the mailbox full"),
        (r"\S{3}\Wfull", "box full"),
        (r"(?P<Word>quota)", "over quota"),
        ("a.*b", "a" + "x" * 900 + "b"),
        ("too (?:many|much) .{0,40}(?:from|by)", "too many messages from"),
    ],
)
def test_a_pattern_finds_its_text(source: str, text: str) -> None:
    assert parse_text_pattern(source).within(text, text.encode())


def _within(pattern: TextPattern, text: str) -> None:
    expected = pattern.regex.search(text) is not None
    assert pattern.within(text, text.encode()) == expected, (pattern.source, text)


@given(st.text("abc. xé", max_size=40))
def test_the_search_before_a_pattern_loses_nothing(text: str) -> None:
    for source in (
        "abc|cab",
        "(?:aab)+c",
        "a(?:bca|cab){0,2}x",
        "abc?a",
        "a{3}.{0,5}bbb",
        "[ab]cc",
        r"\b(?:abc|xabc)\b.{0,3}c",
        r"\b(?:.abc|abcx)",
        r"x.(?:abc|cab|abcabc)\B",
        "(?:x{2}abc|abc){1,2}[ .]bcc",
    ):
        _within(parse_text_pattern(source), text)


@given(st.lists(st.sampled_from(WORDS), max_size=12), st.sampled_from(["", " ", "é", "x"]))
def test_the_search_before_shipped_patterns_loses_nothing(words: list[str], between: str) -> None:
    text = between.join(words)
    for _, pattern in SHIPPED:
        _within(pattern, text)


@given(st.data())
def test_the_search_before_a_shipped_pattern_loses_nothing(data: st.DataObject) -> None:
    _, pattern = data.draw(st.sampled_from(SHIPPED))
    text = data.draw(st.from_regex(pattern.regex)).lower()[:LONGEST]
    _within(pattern, text)
