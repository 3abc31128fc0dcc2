"""The figures of pgmta as parts of those of Postfix."""

from collections.abc import Mapping, Sequence

from bench.phases import Result

SUBJECT, PEER = "pgmta", "postfix"
UNRATED = ("source", "sink", "cores busy", ", ")
"""Figures with such a name are no comparison."""


def ratios(rounds: Sequence[Mapping[str, Result]]) -> list[Result]:
    """Return the figures of pgmta over those of Postfix, for each round in which both are right.

    The same round, because the machine's mood is common to both; a round where one of them lost
    or altered mail says nothing about speed.
    """
    found = []
    for one in rounds:
        ours, theirs = one.get(SUBJECT), one.get(PEER)
        if not ours or not theirs or ours.problems or theirs.problems:
            continue
        figures = {
            name: ours.figures[name] / below
            for name, below in theirs.figures.items()
            if below and name in ours.figures and not any(word in name for word in UNRATED)
        }
        found.append(Result(f"{SUBJECT} / {PEER}", figures))
    return found
