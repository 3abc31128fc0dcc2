"""Runs the command of a module of bench/; the folder above it is the only one on the path."""

import importlib
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parent.parent)
program, module = sys.argv[1:3]
del sys.argv[1:3]
importlib.import_module(module).main(prog_name=f"bench/{Path(program).name}")
