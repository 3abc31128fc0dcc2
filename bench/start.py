"""Runs the command of a module of bench/; the folder above it is the only one on the path."""

import importlib
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parent.parent)
module = sys.argv.pop(1)
sys.argv[0] = "bench"
importlib.import_module(module).main()
