"""The interpreter for the commands of this directory: that of .venv, unless this one will do."""

import importlib.util
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NEEDED = ("click", "psycopg", "uvloop", "yaml")


def enter(command: str) -> None:
    """Go on under .venv's Python if this one lacks a library; `command` is the file to run."""
    python = ROOT / ".venv" / "bin" / "python"
    if all(importlib.util.find_spec(name) for name in NEEDED):
        return
    if not python.exists() or Path(sys.prefix) == ROOT / ".venv":
        sys.exit("bench: libraries are missing here, and there is no .venv: run `make bench` once")
    os.execv(python, [str(python), command, *sys.argv[1:]])
