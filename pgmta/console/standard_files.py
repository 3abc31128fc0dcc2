"""Standard input, output and error of a process, which are never closed."""

from __future__ import annotations

import os
import sys


def fill() -> None:
    """Open those that are closed on /dev/null, here and for each child.

    Else a socket gets the number of one, and Python has None in its place.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) < 3:
        os.set_inheritable(number, True)
    os.close(number)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
