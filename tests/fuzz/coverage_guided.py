"""The coverage-guided fuzzer (atheris): `python -m tests.fuzz.coverage_guided SECONDS FOLDER`.

It takes scripts of the folder and adds those that reach more of smtpd. The script of a failure
stays beside it as `crash-…`, `timeout-…` or `oom-…`. Add it to `FOUND` in test_memory.py.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import atheris

_atheris: Any = atheris
with _atheris.instrument_imports(include=["smtpd", "pgmta"]):
    from tests.fuzz.play import Stage, decode, staged
    from tests.fuzz.scripts import SEEDS, STREAMS, WORDS

_OCTETS = 4096  # of a script
_MEMORY = 500  # MB, of which a hundred are there from the beginning
_STUCK = 20  # seconds for one script


def check(stage: Stage, script: bytes) -> None:
    """Do a script; then send the same octets at once, if nothing else happened."""
    heard = stage.play(script)
    number, steps = decode(script)
    octets = [step for step in steps if isinstance(step, bytes)]
    if number in (1, 2) and len(octets) == len(steps) > 1:
        again = stage.do(number, [b"".join(octets)])
        assert again.text == heard.text, (again.text, heard.text)
        assert [x[1] for x in again.stored.values()] == [x[1] for x in heard.stored.values()]


def main() -> None:
    seconds, folder = int(sys.argv[1]), Path(sys.argv[2])
    corpus = folder / "corpus"
    corpus.mkdir(exist_ok=True)
    for number, script in enumerate((*SEEDS, *(b"\x01" + stream for stream in STREAMS))):
        (corpus / f"seed{number}").write_bytes(script)
    words = ("".join(f"\\x{octet:02x}" for octet in word) for word in WORDS)
    (folder / "words").write_text("".join(f'"{word}"\n' for word in words))
    options = (
        f"-max_total_time={seconds}", f"-max_len={_OCTETS}", f"-dict={folder / 'words'}",
        f"-artifact_prefix={folder}/", f"-rss_limit_mb={_MEMORY}", f"-timeout={_STUCK}",
        "-len_control=0", "-print_final_stats=1",
    )  # fmt: skip
    with staged() as stage:
        _atheris.Setup([sys.argv[0], *options, str(corpus)], lambda script: check(stage, script))
        _atheris.Fuzz()


if __name__ == "__main__":
    main()
