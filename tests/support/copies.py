"""A copy of the product with other features."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from pgmta.features import FEATURES
from tests.support.daemons import ROOT
from tests.support.trees import environment_of

PACKAGES = ("pgmta", "pgmta_features", "queued", "smtpd")


class Copy:
    """A copy of the product with some of its features, and others by their folders.

    It runs with this interpreter.
    """

    def __init__(self, folder: Path, names: Sequence[str], others: Sequence[Path] = ()) -> None:
        self.folder = folder
        compiled = shutil.ignore_patterns("__pycache__")
        for name in (*PACKAGES, "sql", "etc"):
            shutil.copytree(ROOT / name, folder / name, ignore=compiled)
        for name in set(FEATURES) - set(names):
            shutil.rmtree(folder / "pgmta_features" / name)
        for each in others:
            shutil.copytree(each, folder / "pgmta_features" / each.name, ignore=compiled)
        registry = folder / "pgmta" / "features.py"
        listed = "".join(f'"{name}", ' for name in (*names, *(each.name for each in others)))
        text, lines = re.subn(
            r"^FEATURES: .*?\)$", f"FEATURES: tuple[str, ...] = ({listed})",
            registry.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL,
        )  # fmt: skip
        assert lines == 1
        registry.write_text(text, encoding="utf-8")
        # The copy is started a dozen times: only its first start compiles.
        kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        self.environment = kept | environment_of(folder)
        """Variables with which Python runs the copy."""

    def run(self, *args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *args], env=self.environment, cwd=self.folder, capture_output=True,
            text=True, timeout=120,
        )  # fmt: skip

    def queuectl(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.run("-c", "from queued.cli.queuectl import main; main()", *words)
