"""The values that pass between the store, the workers and delivery."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, NamedTuple

from pgmta.errors import Stage
from pgmta.selection import Selection
from pgmta.states import Event
from pgmta.tracing import RowSpans

CHUNK_OCTETS = 8096
"""A chunk of this size fills a page of PostgreSQL with its row.

Content of at most this size is in its message row.
"""

PART_OCTETS = 64 * CHUNK_OCTETS
"""At most 64 chunks, half a MB, are written or read at once."""

MAX_INDEXED_CHARACTERS = 600
"""The longest address in an index: an entry there has at most 2,704 octets."""

ENHANCED = re.compile(r"[245]\.\d{1,3}\.\d{1,3}(?= |$)")
"""An enhanced status code at the start of a reply's text (RFC 2034)."""


type Origin = Literal["stranger", "login", "user", "network", "certificate", "sql", "queued"]
"""How a message came in: it decides who may sign.

`user` has logged in and may send from the addresses in From. `login` has logged in too, but not so.
"""


TRUSTED: tuple[Origin, ...] = ("user", "network", "certificate", "sql", "queued")
"""Origins of mail that is signed unless rules say less."""

ANY_SENDER = "any"
"""The entry among the senders of a user who may send from any address."""


@dataclass(slots=True)
class Options:
    """Options of a message beside its envelope and content; few messages have any."""

    tenant: str = ""
    once: bool = False
    submitted_by: str | None = None
    envid: str | None = None
    ret: str | None = None
    requiretls: bool = False
    notify: list[str | None] | None = None  # for each recipient (RFC 3461, section 4.1)
    orcpt: list[str | None] | None = None  # for each recipient (RFC 3461, section 4.2)
    tls_optional: bool = False  # the header says TLS-Required: No
    send_at: datetime | None = None  # no attempt is made before it; a past time counts as none


@dataclass(slots=True)
class NewMessage:
    """An accepted message on its way into the store.

    `body` is empty if the content was stored in `chunks` chunks beforehand.
    """

    id: int
    sender: str
    recipients: list[tuple[str, str]]  # address and normalised domain
    size: int
    trace: str
    body: bytes
    chunks: int = 0
    utf8: bool = False
    metadata: list[str] = field(default_factory=list)  # JSON for each recipient; []: {} for all
    holds: list[str | None] | None = None  # why each recipient is on hold; None: none is
    priority: int = 5
    sender_domain: str | None = None  # normalised; None: the domain of `sender`
    message_id_header: str | None = None  # Message-ID of the header
    options: Options | None = None
    on_failed: str = "hold"  # after a final failure: hold, remove or bounce
    origin: Origin | None = None  # mail of unknown origin is not signed


@dataclass(slots=True)
class Message:
    """A stored message: its trace field and, unless it is large, its octets as received.

    Of composed mail the octets are what follows the composed texts. `composition` is its template
    and its parameters, as JSON; '' if they are large too, and None if the mail is not composed.
    """

    id: int
    size: int
    utf8: bool
    trace: str
    chunks: int
    body: bytes | None
    message_id_header: str | None = None
    submitted_by: str | None = None  # role of an SQL session
    envid: str | None = None  # parameters of MAIL (RFC 3461)
    ret: str | None = None
    requiretls: bool = False  # the parameter of MAIL (RFC 8689)
    origin: Origin | None = None
    tls_optional: bool = False  # its header says TLS-Required: No
    composition: str | None = None


class ReasonToWait(NamedTuple):
    """Why mail may not go for now: `kind` says what it is, such as `suspended`.

    `number` is that of the order behind it. With a text in `final` the mail may never go, and its
    row ends with this text in the log.
    """

    kind: str
    number: int
    final: str = ""


@dataclass(slots=True)
class Item:
    """One claimed row: a message for one recipient, under a lease."""

    id: int
    message_id: int
    sender: str
    recipient: str
    domain: str
    attempts: int  # with the present one
    ts: datetime
    token: int
    urgent: bool = False
    once: bool = False  # never a second copy: an unknown outcome is final
    on_failed: str = "hold"  # after a final failure: hold, remove or bounce
    tenant: str = ""
    metadata: str | None = None  # JSON; None: empty
    notify: str | None = None  # parameters of RCPT (RFC 3461)
    orcpt: str | None = None
    priority: int = 5
    message_id_header: str | None = None  # of the message
    submitted_by: str | None = None  # of the message
    origin: Origin | None = None  # of the message
    client: str = ""  # address|helo|protocol of who handed the message over by SMTP
    spans: RowSpans | None = field(default=None, compare=False)  # None: no trace is recorded
    reason_to_wait: ReasonToWait | None = None  # which the database has noted
    suppressed: str = ""  # why the recipient gets no mail, as the database has noted; '': it does
    original: Item | None = None  # the row, if this is a copy with another recipient


@dataclass(slots=True, frozen=True)
class StsPolicy:
    """An MTA-STS policy of a domain (RFC 8461); `left` are the seconds for which it counts.

    `id` is that of the TXT record. `mode` is enforce, testing or none, `max_age` in seconds.
    """

    domain: str
    id: str
    mode: str
    mx: tuple[str, ...]
    max_age: int
    left: float


@dataclass(slots=True, frozen=True)
class TlsResult:
    """The result of a TLS session as reports to a domain have it (RFC 8460, section 4.3).

    A success has neither host nor address nor reason: one number per policy is enough.
    """

    domain: str
    policy_type: str  # tlsa, sts or no-policy-found
    policy: str
    result: str = "successful"
    host: str = ""
    address: str = ""
    reason: str = ""


@dataclass(slots=True, frozen=True)
class DkimKey:
    """A key that signs mail, as the table has it; `active_from` are seconds since 1970."""

    domain: str
    selector: str
    type: str  # rsa or ed25519
    active_from: float
    private_key: str = field(repr=False)  # PEM


@dataclass(slots=True, frozen=True)
class Labelled:
    """The mail of a route, and the label by which claims know it.

    With `by_domain` each recipient domain has its own label.
    """

    selection: Selection
    label: str = ""
    by_domain: bool = True


@dataclass(slots=True, frozen=True)
class RouteLimit:
    """The mail of a route, and the name of what limits it, as a rate does; '': nothing does.

    With `by`, a field of rows or `metadata.KEY`, each value of it has its own limit.
    """

    selection: Selection
    name: str = ""
    by: str = ""

    def label(self, value: str) -> str:
        """Return the name by which claims leave out the mail with this value."""
        return f"{self.name} {value}" if self.by else self.name


@dataclass(slots=True, frozen=True)
class NamedHop:
    """Some mail, and the name of its next hop; an empty one: each domain is its own."""

    selection: Selection
    name: str = ""


OTHER_MAIL = "route -"
"""The label of mail whose destination depends on nothing but its domain."""


@dataclass(slots=True, frozen=True)
class Reply:
    """An SMTP reply (RFC 5321, section 4.2); code 0 means a failure without any reply."""

    code: int
    text: str

    @property
    def enhanced(self) -> str:
        """The enhanced status code at the start of the text (RFC 2034), or ''."""
        match = ENHANCED.match(self.text)
        return match.group() if match else ""

    def __str__(self) -> str:
        return f"{self.code} {self.text}" if self.code else self.text


@dataclass(slots=True)
class Facts:
    """The host of a connection with its port, its address, its TLS, and the seconds of each step.

    `tls_verified` says by what the host was authenticated: 'dane' (RFC 7672), 'sts' (RFC 8461),
    'pkix', or 'no'. The TLS fields are empty without TLS.
    """

    host: str = ""
    address: str = ""
    tls_version: str = ""
    tls_cipher: str = ""
    tls_verified: str = ""
    dns_seconds: float = 0.0
    connect_seconds: float = 0.0
    greeting_seconds: float = 0.0
    tls_seconds: float = 0.0


@dataclass(slots=True)
class Outcome:
    """How the attempt for one item ended."""

    item: Item
    event: Event
    reply: Reply
    host: str = ""  # the next hop, host:port, or '' if none was reached
    stage: Stage = Stage.NONE  # the step in which the reply came
    shared: bool = False  # the reply was for several recipients at once
    started: datetime = field(kw_only=True)
    ended: datetime = field(kw_only=True)
    delay: float = 0.0  # seconds until the next attempt after a deferral
    facts: Facts | None = None  # about the connection, if one was tried
    seconds: float = 0.0  # of the transaction, if it began
    dialogue: str = ""  # the transcript to store; '': none
    traces: tuple[int, ...] = ()  # the traces that asked for the transcript
    report: str = ""  # "relayed" or "delivered" if the sender wants to know of the success
    overdue: float = 0.0  # the time of `bounces.delay`, in seconds, that has passed; 0: none has
    answer_class: str = ""  # an AnswerClass; '': delivered, or no answer was read
    expired_class: str = ""  # that of the last answer, if the row expired with it
    reason_to_wait: ReasonToWait | None = None  # why the row is put off
