"""A program with an aiosmtpd Controller, whose mail goes into the queue of pgmta.

    python examples/aiosmtpd_controller.py postgresql://mail_in@localhost/pgmta 2525

It takes mail from this host, and from all hosts for example.org, until SIGINT or SIGTERM.
"""

import signal
import sys
from typing import Any

from aiosmtpd.controller import Controller

from pgmta.errors import ConfigError
from smtpd.aiosmtpd_handler import AiosmtpdHandler

SETTINGS = {  # as in smtpd.yaml
    "environment": {"hostname": "mx.example.org"},
    "relay": {"networks": ["127.0.0.0/8"], "domains": ["example.org"]},
}
ENDS = (signal.SIGINT, signal.SIGTERM)


class Rules(AiosmtpdHandler):
    """Has two rules beside those of pgmta."""

    async def handle_RCPT(
        self, server: Any, session: Any, envelope: Any, address: str, options: list[str]
    ) -> str:
        """Refuse one recipient, and have the mail of another one sent first."""
        if address.startswith("nobody@"):
            return "550 5.1.1 No such recipient"
        if address.startswith("urgent@"):
            envelope.pgmta.priority = 0
        return await super().handle_RCPT(server, session, envelope, address, options)


def main(uri: str, port: int) -> None:
    """Take mail until a signal."""
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)  # in all threads: main waits for them
    handler = Rules(uri, SETTINGS)
    controller = Controller(handler, hostname="127.0.0.1", port=port, data_size_limit=50 << 20)
    controller.start()
    print("ready", flush=True)
    signal.sigwait(ENDS)
    handler.close()  # first: messages under way are committed, and their clients get 250
    controller.stop()


if __name__ == "__main__":
    if len(sys.argv) != 3 or not sys.argv[2].isdecimal():
        sys.exit(f"usage: {sys.argv[0]} URI PORT")
    try:
        main(sys.argv[1], int(sys.argv[2]))
    except (ConfigError, OSError) as error:  # a mistake, or a port in use
        sys.exit(str(error))
