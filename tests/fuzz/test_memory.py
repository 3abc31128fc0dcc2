"""Sessions in memory: early ends at every octet, odd scripts, and octets cut anywhere."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.fuzz.play import LISTENERS, OPS, Stage, cut_up, decode, staged
from tests.fuzz.scripts import SEEDS, STREAMS, WORDS

FOUND: list[bytes] = [b"\x00"]
"""Scripts that once failed."""

_octets = st.sampled_from(WORDS) | st.binary(max_size=4).map(
    lambda some: some.replace(b"\xff", b"")
)
_steps = st.lists(
    _octets | st.sampled_from([b"\xff" + letter.encode() for letter in OPS]), max_size=30
)


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with staged() as made:
        yield made


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(SEEDS)))
def test_an_end_after_every_octet(stage: Stage, number: int) -> None:
    """The client closes its side, resets the connection, or is silent; in TLS as well."""
    script = SEEDS[number]
    cuts = [at for at in range(1, len(script) + 1) if script[at - 1] != 0xFF]
    for end in (b"\xffe", b"\xffd", b"\xffs", b"\xffb\xffW\xffd", b""):
        for cut in cuts:
            stage.play(script[:cut] + end)


@pytest.mark.parametrize("stream", STREAMS)
def test_octets_mean_the_same_however_they_are_cut(stage: Stage, stream: bytes) -> None:
    whole = stage.do(1, [stream])
    assert whole.queued
    for size in (1, 2, 3, 7):
        cut = stage.do(1, cut_up(stream, size))
        assert cut.text == whole.text
        assert [each[1] for each in cut.stored.values()] == [
            each[1] for each in whole.stored.values()
        ]
    for at in range(1, len(stream)):
        assert stage.do(1, [stream[:at], stream[at:]]).text == whole.text


@settings(max_examples=500)
@given(number=st.integers(0, len(LISTENERS) - 1), steps=_steps)
@example(0, [])
def test_scripts(stage: Stage, number: int, steps: list[bytes]) -> None:
    stage.play(bytes((number,)) + b"".join(steps))


@pytest.mark.parametrize("script", FOUND)
def test_scripts_that_once_failed(stage: Stage, script: bytes) -> None:
    stage.play(script)


def test_the_dialogues_bring_mail(stage: Stage) -> None:
    brought = [len(stage.play(script).stored) for script in SEEDS]
    assert brought.count(0) == 1, brought  # the failed login
    assert {decode(script)[0] for script in SEEDS} == set(range(len(LISTENERS)))
