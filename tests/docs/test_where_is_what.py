"""docs/develop/architecture.md, "Where is what": the answers are files named after the noun."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SECTION = (
    (ROOT / "docs" / "develop" / "architecture.md")
    .read_text(encoding="utf-8")
    .partition("## Where is what")[2]
    .partition("\n## ")[0]
)
ROW = re.compile(r"^\|[^|]*\| ([a-z ]+) \| `([^`]+)` \| `([^`]+)` \|$", re.MULTILINE)


@pytest.mark.parametrize(("noun", "file", "code"), ROW.findall(SECTION))
def test_each_answer_is_the_file_of_its_noun(noun: str, file: str, code: str) -> None:
    path = ROOT / file
    assert path.stem == noun.replace(" ", "_")
    assert code in path.read_text(encoding="utf-8")


def test_every_question_of_the_issue_is_answered() -> None:
    questions = re.findall(r"^\| ([A-Z][^|]+\?) \|", SECTION, re.MULTILINE)
    assert len(set(questions)) >= 60
    for word in ("leased", "end of data", "250", "judged", "retry time"):
        assert any(word in question for question in questions), word


def test_a_column_that_comes_in_touches_the_named_files() -> None:
    """`sender_domain` is the last one that came: its way through the store is as documented."""
    (line,) = re.findall(
        r"^\| of a row or message that comes in \| (.+) \|$", SECTION, re.MULTILINE
    )
    for file in re.findall(r"`([^`]+)`", line):
        assert "sender_domain" in (ROOT / file).read_text(encoding="utf-8"), file
