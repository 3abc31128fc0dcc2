"""A hook that accepts each recipient and awaits nothing, for `bench/relay --hook`."""

from aiosmtpd.smtp import SMTP, Envelope, Session


class Handler:
    """Accepts each recipient."""

    async def handle_RCPT(
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        """Add the recipient."""
        envelope.rcpt_tos.append(address)
        return "250 2.1.5 Ok"
