"""The command `smtpd`, also as `python -m smtpd`."""

from __future__ import annotations

import sys

from pgmta import signals
from pgmta.console import standard_files


def main() -> None:
    """Run the command; a daemon keeps the signals that come while the rest is imported."""
    standard_files.fill()
    if sys.argv[1:2] not in (["run"], ["serve"]):
        _run_command()
        return
    with signals.kept():
        from smtpd.process.plan_process import PLAN_OPTION

        if sys.argv[1] == "run" and PLAN_OPTION not in sys.argv:
            _run_master()
        else:
            _run_command()


def _run_command() -> None:
    from smtpd.cli import main as command

    command(prog_name="smtpd")


def _run_master() -> None:
    """Run the master, which imports little."""
    from smtpd.process.master import run

    try:
        run(sys.argv[2:])
    except Exception as error:
        failed = error
        from pgmta.command import reporting

        @reporting
        def fail() -> None:
            raise failed

        fail()


if __name__ == "__main__":
    main()
