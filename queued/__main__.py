"""The command `queued`, also as `python -m queued`."""

from __future__ import annotations

import sys

from pgmta import signals
from pgmta.console import standard_files


def main() -> None:
    """Run the command; a daemon keeps the signals that come while the rest is imported."""
    standard_files.fill()
    if sys.argv[1:2] in (["run"], ["web"]) and "--check" not in sys.argv:
        with signals.kept():
            _run_command()
    else:
        _run_command()


def _run_command() -> None:
    if sys.argv[1:2] == ["web"]:  # without the code that delivers, which takes 10 MB of memory
        from queued.daemon.web import web

        web(sys.argv[2:], prog_name="queued web")
    from queued.daemon.queued import main as command

    command()


if __name__ == "__main__":
    main()
