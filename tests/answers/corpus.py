"""The replies of tests/answers/replies, as results of attempts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pgmta.errors import Stage
from pgmta.model import Reply
from queued.config.answer_text import parse_reply

FOLDER = Path(__file__).parent / "replies"
DOT = "dot"  # the end of data


@dataclass(frozen=True)
class Sample:
    """A reply of `provider` with its class, as CLASS or CLASS/LASTING, and where it is from."""

    provider: str
    line: int
    expected: str
    source: str
    text: str
    answer: tuple[Reply, str, Stage]
    """The reply, its host and its stage, as `AnswerRules.read_reply` takes them."""

    def __str__(self) -> str:
        return f"{self.provider}.txt:{self.line}"


def samples() -> Iterator[Sample]:
    """Yield all replies."""
    for path in sorted(FOLDER.glob("*.txt")):
        yield from _read(path)


def _read(path: Path) -> Iterator[Sample]:
    host, sources = "", set()
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        words = line.split()
        if line.startswith(("host ", "@host ")):
            host = words[1]
        elif line.startswith("source "):
            assert len(words) > 2, f"{path.name}:{number}: a source without a place"
            sources.add(words[1])
        elif " | " in line:
            head, _, text = line.partition(" | ")
            expected, step, source = head.split()
            assert source in sources, f"{path.name}:{number}: no source {source}"
            stage = Stage.END_OF_DATA if step == DOT else Stage(step)
            answer = parse_reply(text), f"{host}:25", stage
            yield Sample(path.stem, number, expected, source, text, answer)
        else:
            assert not line or line.startswith("#"), f"{path.name}:{number}: {line}"
