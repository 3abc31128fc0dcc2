"""Runs the command of a module of bench/; the folder above it is the only one on the path."""

import importlib
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parent.parent)
name = Path(sys.argv.pop(1)).name
importlib.import_module(f"bench.{name}").main(prog_name=f"bench/{name}")
