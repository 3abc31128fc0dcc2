"""`python -m queued` is the command `queued`."""

from queued.cli.queued import main

main()
