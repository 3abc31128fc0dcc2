"""Real replies of the large providers get the right class, and every shipped rule has a reply."""

from __future__ import annotations

from pgmta.errors import Stage
from pgmta.mail.answer_class import AnswerClass
from pgmta.model import Reply
from queued.answers.answer_rules import AnswerRules
from queued.config import AnswerRule, shipped_answers
from queued.config.answer_index import Answer, shipped_index
from queued.config.answer_text import parse_reply
from tests.answers.corpus import samples

RULES = AnswerRules(shipped_index())
# IANA, "SMTP Enhanced Status Codes Registry", of December 2024: the last detail of each subject
REGISTRY = {0: 0, 1: 10, 2: 4, 3: 6, 4: 7, 5: 6, 6: 10, 7: 30}


def shown(answer: Answer) -> str:
    return f"{answer.answer_class}/{answer.lasting}" if answer.lasting else answer.answer_class


def test_replies_are_classed_right() -> None:
    wrong = []
    for sample in samples():
        answer = RULES.read_reply(*sample.answer)
        if shown(answer) != sample.expected:
            found = f"{shown(answer)} by {answer.rule}, not {sample.expected}"
            wrong.append(f"{sample}: {found}: {sample.text}")
    assert not wrong, "\n".join(wrong)


def test_every_shipped_rule_decides_its_example() -> None:
    """The rule itself decides, and no rule before it."""
    for book in shipped_answers():
        for number, rule in enumerate(book.rules):
            assert rule.example, book.place(number)
            for example in rule.example:
                answer = RULES.read_reply(*answer_for(rule, example, book.providers))
                assert answer.rule == book.place(number), (answer, example)
                assert answer.answer_class is rule.answer_class


def answer_for(
    rule: AnswerRule, example: str, groups: dict[str, list[str]]
) -> tuple[Reply, str, Stage]:
    """Return the reply of a next hop for which the rule is, with the host and the stage."""
    host = "mx.example.net"
    if rule.provider:
        [first, *_] = groups.get(rule.provider[0], [rule.provider[0]])
        host = first.replace("*", "mx")
    stage = rule.command[0] if rule.command else Stage.END_OF_DATA
    return parse_reply(example), f"{host}:25", stage


def test_the_whole_registry_of_enhanced_codes_is_in_the_table() -> None:
    table: dict[str, AnswerClass | None] = {}
    for book in shipped_answers():
        table |= book.enhanced
    assert sum(last + 1 for last in REGISTRY.values()) == 81
    for subject, last in REGISTRY.items():
        for detail in range(last + 1):
            assert f"{subject}.{detail}" in table
