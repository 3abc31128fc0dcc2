"""The interpreter for the commands of this directory: that of .venv, unless this one will do."""

import importlib
import importlib.util
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NEEDED = ("click", "psutil", "psycopg", "uvloop", "yaml")


def run(command: str, module: str) -> None:
    """Run `main` of the module; under .venv's Python if this one lacks a library.

    `command` is the file that was started. Exits with 1 if a library is missing in .venv as well.
    """
    python = ROOT / ".venv" / "bin" / "python"
    if all(importlib.util.find_spec(name) for name in NEEDED):
        importlib.import_module(module).main()
        return
    if not python.exists() or Path(sys.prefix) == ROOT / ".venv":
        sys.exit("bench: libraries are missing here, and there is no .venv: run `make bench` once")
    os.execv(python, [str(python), command, *sys.argv[1:]])
