"""The command `smtpd`, also as `python -m smtpd`."""

from __future__ import annotations

import os
import sys

from pgmta import signals


def main() -> None:
    """Run the command; a daemon keeps the signals that come while the rest is imported."""
    _fill_standard_descriptors()
    if sys.argv[1:2] in (["run"], ["serve"]):
        signals.catch()
    from smtpd.process.plan_process import OPTION

    if sys.argv[1:2] == ["run"] and OPTION not in sys.argv:
        _run_master()
        return
    from smtpd.cli import main as command

    command(prog_name="smtpd")


def _fill_standard_descriptors() -> None:
    """Open those of stdin, stdout and stderr that are closed: else a socket gets that number."""
    while (number := os.open(os.devnull, os.O_RDWR)) < 3:
        pass
    os.close(number)


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
