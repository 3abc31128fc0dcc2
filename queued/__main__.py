"""The command `queued`, also as `python -m queued`."""

from __future__ import annotations

import sys

from pgmta import signals


def main() -> None:
    """Run the command; a daemon keeps the signals that come while the rest is imported."""
    if sys.argv[1:2] in (["run"], ["web"]) and "--check" not in sys.argv:
        signals.catch()
    if sys.argv[1:2] == ["web"]:  # by itself: the parts that deliver have 10 MB
        from queued.daemon.web import web

        web(sys.argv[2:], prog_name="queued web")
    from queued.daemon.queued import main as command

    command()


if __name__ == "__main__":
    main()
