"""Puts man pages, completion files and JSON schemas into the wheel, made from the code."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class SharedFiles(BuildHookInterface[Any]):
    """Makes the files in build/share, as a step of each build of a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Make the files. An editable installation has none."""
        if version == "editable":
            return
        root = Path(self.root)
        made = root / "build" / "share"
        shutil.rmtree(made, ignore_errors=True)
        subprocess.run([sys.executable, root / "scripts" / "reference"], check=True)
        # each by its name: hatch leaves out a folder that git ignores
        for file in sorted(filter(Path.is_file, made.rglob("*"))):
            build_data["shared_data"][str(file)] = str(file.relative_to(root / "build"))
