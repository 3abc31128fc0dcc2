"""From the result of an attempt to its answer class, by the rules of answers.yaml (pure)."""

from __future__ import annotations

from pgmta.errors import Stage
from pgmta.mail.answer_class import AnswerClass
from pgmta.model import Reply
from queued.config.answer_index import Answer, AnswerIndex, CompiledRule
from queued.config.answer_text import MAX_SEARCHED_CHARACTERS, plain_words

_MAX_CACHED = 2048  # answers, and lists of rules

_STAGES = {
    Stage.NONE: AnswerClass.OTHER,
    Stage.MX: AnswerClass.DNS,
    Stage.ADDRESS: AnswerClass.DNS,
    Stage.TLS: AnswerClass.TLS,
    Stage.AUTH: AnswerClass.AUTHENTICATION,
    Stage.CONTENT: AnswerClass.OTHER,
    Stage.LEASE: AnswerClass.OTHER,
}
"""The classes of errors without a reply; after the connect most are a lost connection."""

_VIOLATIONS = ("not an SMTP reply", "reply is too long", "reply with", "plain text")
"""Beginnings of the reasons for which the client protocol drops a connection."""

_MAIL_SUBJECTS = ("1", "6")
"""The subjects of enhanced codes (RFC 3463) by which pgmta rejects mail, not the host."""


class AnswerRules:
    """Reads answers by the rules of a configuration, and keeps the answers to known replies."""

    def __init__(self, index: AnswerIndex) -> None:
        self._index = index
        self._known: dict[tuple[int, Stage, str, str], Answer] = {}
        self._lists: dict[tuple[frozenset[str], int, str, Stage], tuple[CompiledRule, ...]] = {}

    def read_reply(
        self, reply: Reply, host: str = "", stage: Stage = Stage.NONE, *, permanent: bool = False
    ) -> Answer:
        """Return the answer of a reply that is no success.

        The code 0 is an error of pgmta, which may be `permanent`.
        """
        if not reply.code:
            return self._without_reply(reply.text, host, stage, permanent=permanent)
        text = reply.text[:MAX_SEARCHED_CHARACTERS]
        key = reply.code, stage, host, text
        answer = self._known.get(key)
        if answer is None:
            answer = self._read(reply.code, text, host, stage)
            if len(self._known) >= _MAX_CACHED:
                self._known.clear()
            self._known[key] = answer
        return answer

    def _read(self, code: int, text: str, host: str, stage: Stage) -> Answer:
        words, enhanced = plain_words(text)
        rule = _first(self._candidates(code, enhanced, host, stage), words)
        return rule.answer if rule else self._by_tables(code, enhanced, stage)

    def _candidates(
        self, code: int, enhanced: str, host: str, stage: Stage
    ) -> tuple[CompiledRule, ...]:
        """Return the rules of which only the text is left to be looked at, in their order."""
        providers = self._index.providers(host)
        key = providers, code, enhanced, stage
        rules = self._lists.get(key)
        if rules is None:
            rules = self._index.candidates(providers, code, enhanced, stage)
            if len(self._lists) >= _MAX_CACHED:
                self._lists.clear()
            self._lists[key] = rules
        return rules

    def _by_tables(self, code: int, enhanced: str, stage: Stage) -> Answer:
        found = self._index.enhanced(enhanced) or self._index.code(code, stage)
        return Answer(found[0], rule=found[1]) if found else _UNKNOWN_ANSWER

    def _without_reply(self, text: str, host: str, stage: Stage, *, permanent: bool) -> Answer:
        """Return the answer of an error of pgmta itself, or of a connection that broke."""
        words, enhanced = plain_words(text[:MAX_SEARCHED_CHARACTERS])
        if rule := _first(self._candidates(0, enhanced, host, stage), words):
            return rule.answer
        mine = enhanced[2:3] in _MAIL_SUBJECTS or enhanced == "5.3.4"
        if mine and stage is not Stage.TLS and (found := self._index.enhanced(enhanced)):
            return Answer(found[0], rule=found[1])
        if stage is Stage.MX and permanent:
            return Answer(AnswerClass.BAD_DOMAIN, rule="no reply, MX")
        answer_class = _STAGES.get(stage, AnswerClass.NO_CONNECTION)
        if text.startswith(_VIOLATIONS):
            answer_class = AnswerClass.PROTOCOL
        return Answer(answer_class, rule=f"no reply, {stage.value or 'not begun'}")


def _first(rules: tuple[CompiledRule, ...], words: str) -> CompiledRule | None:
    """Return the first rule whose text matches, None if there is none."""
    octets = words.encode(errors="replace")
    for rule in rules:
        if rule.search is None or rule.search(octets) is not None:
            return rule
    return None


_UNKNOWN_ANSWER = Answer(AnswerClass.OTHER, rule="no rule")
