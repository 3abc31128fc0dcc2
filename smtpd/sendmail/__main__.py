"""The commands `sendmail` and `mailq`."""

from __future__ import annotations

import os
import sys

from smtpd.sendmail.modes import run


def main() -> None:
    """Run the command, and end with a code of sysexits.h."""
    try:
        sys.exit(run(sys.argv[1:], os.path.basename(sys.argv[0])))
    except KeyboardInterrupt:
        sys.exit(75)


if __name__ == "__main__":
    main()
