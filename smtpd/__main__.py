"""`python -m smtpd` is the command `smtpd`."""

from smtpd.cli import main

main()
