"""How often Python's interpreter passes from one thread to another."""

from __future__ import annotations

import sys

_SWITCH = 0.0005  # seconds; the usual 0.005 leave the sessions 200 events a second
_usual = 0.0
_hurried: set[object] = set()


def hurry(owner: object, wanted: bool) -> None:
    """Have threads change often as long as at least one owner wants it.

    The thread of the sessions gives up the interpreter in every event. A hook in a busy loop then
    keeps it for the whole interval. See decision 0026.
    """
    global _usual
    if wanted == (owner in _hurried):
        return
    if not _hurried:
        _usual = sys.getswitchinterval()
        sys.setswitchinterval(min(_SWITCH, _usual))
    if wanted:
        _hurried.add(owner)
        return
    _hurried.discard(owner)
    if not _hurried:
        sys.setswitchinterval(_usual)
