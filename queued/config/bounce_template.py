"""A text with placeholders such as {recipients}, read once and filled in often (pure)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pgmta.config.types import hint

_TOKEN = re.compile(r"\{\{|\}\}|\{[^{}]*\}|[{}]")


@dataclass(frozen=True, slots=True)
class Template:
    """Literal texts, each followed by the placeholder of the same place; the last one by none."""

    literals: tuple[str, ...]
    names: tuple[str, ...]

    def fill(self, values: Mapping[str, str]) -> str:
        """Return the text with the values; no value is read as a template."""
        if not self.names:
            return self.literals[0]
        parts = [self.literals[0]]
        for name, literal in zip(self.names, self.literals[1:], strict=True):
            parts += values[name], literal
        return "".join(parts)

    @classmethod
    def joined(cls, lines: Sequence[Template]) -> Template:
        """Return the template of these lines, with LF between them."""
        literals, names = list(lines[0].literals), list(lines[0].names)
        for line in lines[1:]:
            literals[-1] += "\n" + line.literals[0]
            literals += line.literals[1:]
            names += line.names
        return cls(tuple(literals), tuple(names))


def parse_template(
    text: str, line: int, known: Sequence[str], problems: list[tuple[int, str]]
) -> Template | None:
    """Return the template of a text; None if it has mistakes, which go to `problems`.

    `known` are the names of its placeholders. A double brace stands for a brace.
    """
    literals, names, end, before = [""], list[str](), 0, len(problems)
    for token in _TOKEN.finditer(text):
        literals[-1] += text[end : token.start()]
        end = token.end()
        found = token[0]
        if found in ("{{", "}}"):
            literals[-1] += found[0]
        elif len(found) == 1:
            problems.append((line, f"a single {found!r}: write {found * 2} for a brace"))
        elif (name := found[1:-1]) not in known:
            advice = hint(name, known) if known else "no placeholder may stand here"
            problems.append((line, f"{found[:60]}: unknown placeholder; {advice}"))
        else:
            names.append(name)
            literals.append("")
    literals[-1] += text[end:]
    return Template(tuple(literals), tuple(names)) if len(problems) == before else None
