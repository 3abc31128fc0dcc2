"""Every reply that smtpd gives of its own (RFC 5321, section 4.2; codes of RFC 3463)."""

from __future__ import annotations

MAIL_OK = "250 2.1.0 Ok"
RCPT_OK = "250 2.1.5 Ok"
DATA_GO = "354 End data with <CR><LF>.<CR><LF>"
SYNTAX_MAIL = "501 5.5.4 Syntax: MAIL FROM:<address> [parameters]"
SYNTAX_RCPT = "501 5.5.4 Syntax: RCPT TO:<address>"
SYNTAX_DATA = "501 5.5.4 Syntax: DATA"
NO_HELO = "503 5.5.1 Send EHLO or HELO first"
NO_MAIL = "503 5.5.1 Send MAIL first"
NO_RCPT = "503 5.5.1 No valid recipients"
NESTED_MAIL = "503 5.5.1 Sender already given"
UNKNOWN_PARAMETER = "555 5.5.4 Unsupported parameter: {}"
BAD_BODY = "501 5.5.4 BODY is 7BIT or 8BITMIME"
BAD_SIZE = "501 5.5.4 SIZE is a number"
BAD_ADDRESS = "553 5.1.3 {}"
BAD_SENDER = "553 5.1.7 {}"
RELAY_DENIED = "550 5.7.1 Relaying denied"
TOO_MANY_RECIPIENTS = "452 4.5.3 Too many recipients"
TOO_LARGE = "552 5.3.4 Message is larger than {} octets"
TOO_MANY_HOPS = "554 5.4.6 Too many Received headers: this is a loop"
BARE_NEWLINE = "550 5.5.2 {}"
UNAVAILABLE = "451 4.3.0 Queue is unavailable, try again later"
INTERNAL = "451 4.3.0 Internal error, try again later"
TOO_MANY_CONNECTIONS = "421 4.7.0 {} Too many connections, try again later"
SHUTTING_DOWN = "421 4.3.2 {} Shutting down"


def queued(message_id: int) -> str:
    """The acknowledgement: from here on the message is ours (RFC 5321, section 6.1)."""
    return f"250 2.0.0 {message_id} queued"
