"""The ratios of bench/peers: only of one round, and only of rounds in which both were right."""

from bench.peer.cells import FULL_CELLS, QUICK_CELLS
from bench.peers import ratios
from bench.phases import Result

RATE = "messages/s"


def result(rate: float, *problems: str) -> Result:
    return Result("e2e", {RATE: rate}, list(problems))


def test_a_ratio_is_of_one_round() -> None:
    # the machine was three times as slow in the second round: medians alone would give 2.0
    rounds = [
        {"pgmta": result(300), "postfix": result(100)},
        {"postfix": result(50), "pgmta": result(100)},
        {"pgmta": result(200), "postfix": result(100)},
    ]
    assert [one.figures for one in ratios(rounds)] == [{RATE: 3.0}, {RATE: 2.0}, {RATE: 2.0}]


def test_a_round_that_lost_mail_says_nothing_about_speed() -> None:
    rounds = [
        {"pgmta": result(900, "3 recipients lost"), "postfix": result(100)},
        {"pgmta": result(900), "postfix": result(100, "altered content")},
        {"pgmta": result(150)},
    ]
    assert ratios(rounds) == []
    assert ratios([{"pgmta": result(150), "postfix": result(0)}])[0].figures == {}


def test_cells_of_a_set_have_names_of_their_own() -> None:
    for cells in (QUICK_CELLS, FULL_CELLS):
        assert len({cell.label for cell in cells}) == len(cells)
