"""A directory of one run, and the helpers that work there."""

import contextlib
from array import array
from pathlib import Path
from typing import Any

from bench import cpu
from bench.corpus import Plan
from bench.helper import Helper


class Place:
    """Hold the parts of one run: `stack` ends them, `groups` names their processes."""

    def __init__(self, name: str, plan: Plan, directory: Path) -> None:
        self.plan = plan
        self.directory = directory / f"{name}.{plan.run}"
        self.directory.mkdir()
        self.stack = contextlib.ExitStack()
        self.groups: cpu.Groups = {}

    def helper(
        self, module: str, *, group: str = "", plan: Plan | None = None, **config: Any
    ) -> Helper:
        """Start a helper, whose CPU time counts for the group; by default that is its name."""
        group = group or module
        config |= {"plan": (plan or self.plan).as_dict(), "directory": str(self.directory)}
        helper = Helper(module, config, self.directory / f"{group}.log")
        self.stack.callback(helper.close)
        self.groups[group] = [helper.process.pid]
        return helper

    def times(self, name: str) -> array[float]:
        """Return when each message was "sent" or "arrived", 0 if never; by the monotonic clock."""
        return array("d", (self.directory / name).read_bytes())
