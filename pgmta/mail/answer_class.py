"""The classes of answers: why an attempt did not deliver. `attempts.class` has them.

docs/mail/answers.md describes them.
"""

from __future__ import annotations

from enum import StrEnum


class AnswerClass(StrEnum):
    """Why an attempt did not deliver, as an answer rule reads it from the reply."""

    MAILBOX_FULL = "mailbox_full"  # the recipient has no room
    HOST_FULL = "host_full"  # the next hop has no room for anybody's mail: its disk is full
    UNKNOWN_USER = "unknown_user"  # there is no such mailbox
    DISABLED = "disabled"  # the mailbox exists and takes no mail: locked, suspended, inactive
    BAD_DOMAIN = "bad_domain"  # the recipient domain does not exist, takes no mail, is not relayed
    SENDER_REFUSED = "sender_refused"  # the reverse-path, its domain, or a sender without a right
    POLICY = "policy"  # a rule of the recipient or of the host that is not about spam
    SPAM = "spam"  # the content looks like spam, or this host has a bad reputation
    RATE_LIMITED = "rate_limited"  # too much mail or too many connections
    GREYLISTED = "greylisted"  # the host wants to see the same mail again after a while
    TOO_LARGE = "too_large"  # the message has too many octets
    CONTENT = "content"  # a virus, a forbidden attachment, a field or an encoding
    AUTHENTICATION = "authentication"  # SPF, DKIM, DMARC or PTR of the mail, or our login
    TLS = "tls"  # a handshake, a certificate, or a policy that asks for TLS
    DNS = "dns"  # a lookup without an answer
    NO_CONNECTION = "no_connection"  # no host could be reached, or the connection was lost
    PROTOCOL = "protocol"  # a command, its order, its parameters, or a reply of no sense
    LOOP = "loop"  # the mail goes in a circle, or passed too many hosts
    UNDECIDED = "undecided"  # a provider answered a request with neither yes nor no
    EXPIRED = "expired"  # the age, the deadline or the number of attempts is too high
    OTHER = "other"  # none of the classes above


HARD_BOUNCES = (AnswerClass.UNKNOWN_USER, AnswerClass.DISABLED, AnswerClass.BAD_DOMAIN)
"""The classes of a failure because there is no such mailbox, as SQL function is_hard_bounce()."""
