"""The process of `queuectl database run`, which execs it with the folder as its argument."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from pgmta import signals
from pgmta.console.journal import marked_words
from pgmta.errors import PgmtaError


def main() -> None:
    """Own the server in the folder until a signal; exit 1 with a line if it does not start."""
    with signals.kept():
        from pgmta.postgres.embedded.owner import Owner

        directory, *options = sys.argv[1:]
        try:
            asyncio.run(Owner(Path(directory)).run(attached="--attached" in options))
        except PgmtaError as error:
            sys.exit(marked_words(f"error: {error}"))


if __name__ == "__main__":
    main()
