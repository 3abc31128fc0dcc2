"""The process that reads smtpd.yaml for the master, checks it, and ends."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress

from smtpd.process.plan import MasterPlan, parse_plan

PLAN_OPTION = "--plan"
"""The hidden option with the descriptor to which a command writes the plan."""

_SIGNAL_LOOK_INTERVAL_MS = 100  # milliseconds between looks for a signal


class PlanProcess:
    """Runs a command of smtpd that writes a plan. Its errors go to our stderr."""

    def __init__(self, command: Sequence[str], stopped: Callable[[], bool]) -> None:
        self._stopped = stopped
        self._pipe, far = os.pipe()
        try:
            self._process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-P", "-m", "smtpd", *command, PLAN_OPTION, str(far)],
                stdin=subprocess.DEVNULL,
                pass_fds=[far],
                process_group=0,  # signals of a terminal are for the master
            )
        except OSError:
            os.close(self._pipe)
            raise
        finally:
            os.close(far)

    def __enter__(self) -> PlanProcess:
        return self

    def __exit__(self, *_: object) -> None:
        """Wait for the end of the process."""
        os.close(self._pipe)
        self._process.wait()

    def read(self) -> MasterPlan | None:
        """Return the plan; None if `stopped` says so, or if the process ends without one.

        Raises ConfigError with the mistakes of the file, if the command leaves them to us.
        """
        text = b""
        waiting = select.poll()  # select knows no descriptor from 1,024 on
        waiting.register(self._pipe, select.POLLIN)
        while True:
            if self._stopped():
                self._process.terminate()
                return None
            if not waiting.poll(
                _SIGNAL_LOOK_INTERVAL_MS
            ):  # Python notes a signal without ending the wait
                continue
            part = os.read(self._pipe, 1 << 16)
            if not part:
                with suppress(ValueError):  # raised if the process ended in the middle of it
                    return parse_plan(text)
                return None
            text += part

    @property
    def status(self) -> int:
        """The exit code of a process that has ended; -N after signal N."""
        return self._process.wait()
