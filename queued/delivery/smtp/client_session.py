"""An SMTP client session (RFC 5321): greeting, EHLO, transactions."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from dataclasses import replace
from time import monotonic

from pgmta.errors import DeliveryError, Stage
from pgmta.model import Reply
from pgmta.states import Event
from queued.config import Delivery
from queued.delivery.dns.hosts import Host
from queued.delivery.smtp.connection import ClientProtocol
from queued.delivery.smtp.exchange import (
    hung_up,
    lock_step,
    mark_again,
    pipelined,
    reset,
    result_of,
)
from queued.delivery.smtp.final_dot import send_by_lmtp, send_content, send_nothing
from queued.delivery.smtp.mail_commands import limit, mail_command, rcpt_command, size_limit
from queued.delivery.transport.connection_facts import ConnectionFacts
from queued.delivery.transport.envelope import Envelope
from queued.delivery.transport.open_connections import (
    ENDED_BY_OPERATOR,
    IDLE_PHASE,
    ConnectionState,
    note_connection,
)
from queued.delivery.transport.result import Again, Result
from queued.delivery.transport.transcript import CONTENT, MAX_ENTRIES, NOTE
from queued.delivery.transport.transport import UNLIMITED, failed

TRANSACTION_S = 1800.0
"""A transaction that has not come to its final dot ends after this time."""
_POSITIVE_DIGIT = 2  # the first of a positive reply
_SMTP_PORT = 25  # at which LMTP is forbidden (RFC 2033, section 5)
_DEFAULT_DELIVERY = Delivery()


class ClientSession:
    """One dialogue with `host`: greeting and EHLO at `open`, transactions, then `quit`.

    The session has a connection. Whether that is closed, and whether the server broke the
    protocol, is known there. `extensions` has the value of each keyword of the server's last reply
    to EHLO. `facts` are for the log of attempts. With `lmtp` it speaks LMTP (RFC 2033).
    """

    def __init__(
        self,
        connection: ClientProtocol,
        host: Host,
        facts: ConnectionFacts | None = None,
        delivery: Delivery = _DEFAULT_DELIVERY,
        *,
        lmtp: bool = False,
    ) -> None:
        self.connection = connection
        self.host = host
        self.name = str(host.place)
        """The host and its port, as outcomes have them."""
        self.facts = facts or ConnectionFacts(host.name)
        connection.said = self.facts.dialogue
        connection.said.append(
            (monotonic(), NOTE, f"connect to {self.name} at {self.facts.address or host.name}")
        )
        self.lmtp = lmtp
        self.extensions: dict[str, str] = {}
        self.transactions = 0
        self._most_transactions = UNLIMITED  # the limit of the host (MAILMAX of RFC 9422)
        self.spent = False
        """Whether the connection had as many transactions as it may carry."""
        self.most_recipients = UNLIMITED
        """The number of recipients that the host takes at once (RCPTMAX, or its refusals)."""
        self._delivery = delivery
        self._ascii_only = False
        self.vain = False
        """Whether the connection ended before the server had anything of the last envelope."""
        self.unwelcome = False
        """Whether the server ended it with 421: it wants no further connection now."""
        self._loop = asyncio.get_running_loop()
        self._limit = 0  # the largest message in octets; 0: no limit is known
        self._timeouts = connection.timeouts
        self.connect_limit: asyncio.Timeout | None = None
        """The time limit of the connect."""
        self.idle_since = 0.0
        """When its set-up or its last transaction ended; 0.0 before."""
        self._envelope: Envelope | None = None
        self.number = note_connection(self)
        self.opened = connection.phase_since

    @property
    def _success(self) -> str:
        return "delivered" if self.lmtp else "relayed"

    def add_note(self, text: str) -> None:
        """Add a note of ours to the dialogue, for its transcript."""
        self.connection.said.append((monotonic(), NOTE, text))

    async def open(self, hostname: str) -> None:
        """Take the greeting, and `greet` the server.

        Raises DeliveryError. A 5xx here concerns the host and not the mail, so it is never
        permanent (RFC 5321, section 3.8, and the practice since).
        """
        connection = self.connection
        greeting = await connection.reply(Stage.GREETING, self._timeouts.greeting)
        if greeting.code != 220:
            connection.quit()
            raise DeliveryError(greeting.text, Stage.GREETING, code=greeting.code)
        await self.greet(hostname)

    async def greet(self, hostname: str) -> None:
        """Say EHLO, or HELO to a server that does not know EHLO.

        After STARTTLS it is said again, and what the server announced before counts no more (RFC
        3207, section 4.2). Raises DeliveryError, as `open`.
        """
        connection = self.connection
        self.extensions = {}
        if self.lmtp and self.host.port == _SMTP_PORT:
            connection.quit()
            raise DeliveryError("5.3.5 LMTP is forbidden at port 25", Stage.LHLO)
        stage = Stage.LHLO if self.lmtp else Stage.EHLO
        reply = await self._hello(stage, hostname)
        if reply.code == 250:
            for line in connection.lines[1:]:
                keyword, _, value = line.partition(" ")
                self.extensions[keyword.upper()] = value
            if not self.facts.tls_version:
                self.extensions.pop("REQUIRETLS", None)  # RFC 8689, section 2
        elif reply.code // 100 == 5 and not self.lmtp:
            reply = await self._hello(Stage.HELO, hostname)
        self.facts.success_kind = "" if "DSN" in self.extensions else self._success
        self._limit = size_limit(self.extensions.get("SIZE", ""))
        limits = self.extensions.get("LIMITS", "")
        most = limit(limits, "MAILMAX")
        self._most_transactions = min(self._delivery.transactions, most)
        self.most_recipients = limit(limits, "RCPTMAX")
        bounces = self._delivery.eightbit == "bounce"
        self._ascii_only = bounces and "8BITMIME" not in self.extensions
        if reply.code != 250:
            connection.quit()
            raise DeliveryError(reply.text, stage, code=reply.code)
        if connection.closed:  # the host closed right after its reply
            raise DeliveryError(connection.reason, stage)

    async def _hello(self, stage: Stage, hostname: str) -> Reply:
        self.connection.write(f"{stage} {hostname}\r\n".encode(), 1)
        return await self.connection.reply(stage, self._timeouts.command)

    # -- for operators: OpenConnection --

    def state(self) -> ConnectionState | None:
        """Return what the session is doing; None if it has ended."""
        connection, facts, envelope = self.connection, self.facts, self._envelope
        if connection.gone:
            return None
        phase, since = connection.phase, connection.phase_since
        if connection.closed:  # after QUIT
            envelope = None
        elif envelope is None and self.idle_since:
            phase, since = IDLE_PHASE, self.idle_since
        elif connection.past_dot:
            phase = Stage.END_OF_DATA
        elif connection.content or not connection.can_write.is_set():
            phase = Stage.CONTENT
            since = connection.said[-1][0] if connection.said else since
        tls = f"{facts.tls_version} {facts.tls_cipher}".strip()
        sent = self.transactions - (envelope is not None)
        return ConnectionState(self.name, facts.address, phase, since, tls, sent, envelope)

    def end_by_operator(self) -> None:
        """Drop the connection; an envelope that it carries has the outcome of one that broke."""
        connection, limit = self.connection, self.connect_limit
        connection.end_by_operator(ENDED_BY_OPERATOR)
        if limit and not connection.made:
            with suppress(RuntimeError):  # raised if the connection ended a moment ago
                limit.reschedule(self._loop.time())

    # -- the seam: Channel --

    @property
    def best(self) -> bool:
        """Whether no host of the domain has a better preference."""
        return self.host.best

    @property
    def closed(self) -> bool:
        """Whether the connection has ended: no envelope may be given to it."""
        return self.connection.closed

    @property
    def in_doubt(self) -> bool:
        """Whether a final dot was sent whose reply has not come."""
        return self.connection.past_dot

    def close(self) -> None:
        """Say QUIT, and close when the answer comes or after a while."""
        self.connection.quit()

    def abort(self) -> None:
        """Drop the connection at once, without QUIT."""
        self.connection.abort()

    async def wait_closed(self) -> None:
        """Wait for the end of the connection after `close`; the server counts it until then."""
        await self.connection.wait_closed()

    async def send(self, envelope: Envelope) -> list[Result]:
        """Do one transaction and return a result for each item, in order.

        A result of the end of data with the code 0 says how the connection ended after the dot.
        """
        self.transactions += 1
        self.spent = self.transactions >= self._most_transactions
        self._envelope = envelope
        began = monotonic()
        connection = self.connection
        was_open = not connection.closed
        # a host that gets the parameters of RFC 3461 notifies the sender itself
        dsn = "DSN" in self.extensions and not envelope.bare
        if self.transactions == 1:
            connection.said = deque(maxlen=MAX_ENTRIES)
        try:
            results = await self._transact(envelope, dsn)
        except Exception as error:
            results = failed(error, self, envelope)
            if isinstance(error, DeliveryError) and error.retry_elsewhere:
                ours = connection.violated or (connection.ended_by_operator and was_open)
                self.vain = connection.closed and not ours
        else:
            self.vain = self.unwelcome = connection.closed and hung_up(results)
        self._add_facts(results, envelope, began)
        self._envelope = None
        if results[0].event is not Event.DELIVERED or results.count(results[0]) < len(results):
            marks = mark_again(results, envelope if dsn else None)
            if Again.BARE in marks:
                self.add_note("DSN parameters refused: once more without them")
            elif Again.NEXT in marks:
                taken = len(marks) - marks.count(Again.NEXT)
                self.most_recipients = max(1, min(taken, self.most_recipients))
        return results

    async def _transact(self, envelope: Envelope, dsn: bool) -> list[Result]:
        """Do one transaction; `dsn` says whether the host gets the parameters of RFC 3461.

        Raises DeliveryError if the connection ends before the dot (then it is `closed`), if replies
        are out of step with commands, or if the message can't go to this host at all.
        """
        host, connection = self.name, self.connection
        connection.deadline = self._loop.time() + TRANSACTION_S
        only = self._ascii_only
        if envelope.utf8 is None:
            await envelope.look_at_header()
        command = mail_command(envelope, self.extensions, self._limit, dsn=dsn, ascii_only=only)
        commands = [command, *(rcpt_command(item, dsn=dsn) for item in envelope.items)]
        exchange = pipelined if "PIPELINING" in self.extensions else lock_step
        replies, data = await exchange(connection, commands)
        begun = replies[0].code // 100 == _POSITIVE_DIGIT
        accepted = [
            i for i, reply in enumerate(replies[1:]) if reply.code // 100 == _POSITIVE_DIGIT
        ]
        go_on = data is not None and data.code == 354
        finals: list[Result] = []  # results of the accepted recipients
        if go_on and begun and accepted and self.lmtp:
            number = len(accepted)
            said = await send_by_lmtp(connection, envelope, number, ascii_only=only)
            finals = [result_of(reply, host, Stage.END_OF_DATA) for reply in said]
        elif go_on and begun and accepted:
            reply = await send_content(connection, envelope, ascii_only=only)
            final = result_of(reply, host, Stage.END_OF_DATA)
            final.shared = len(accepted) > 1
            finals = [final] * len(accepted)
        elif go_on and begun:
            await send_nothing(connection)
        elif go_on:
            connection.abort()  # a dot would send an empty message to accepted recipients
        elif data and begun:
            finals = [result_of(data, host, Stage.DATA)] * len(accepted)
        if not begun:
            results = [result_of(replies[0], host, Stage.MAIL)] * len(envelope.items)
        elif len(accepted) == len(envelope.items):
            results = finals
        else:
            results = [result_of(reply, host, Stage.RCPT) for reply in replies[1:]]
            for i, result in zip(accepted, finals, strict=True):
                results[i] = result
        if any(result.reply.code == 421 for result in results):
            connection.quit()
        elif not go_on:
            await reset(connection)
        return results

    def _add_facts(self, results: list[Result], envelope: Envelope, began: float) -> None:
        """Add facts, duration and dialogue of the last transaction to its results.

        The set-up of the connection belongs to the first transaction.
        """
        connection, facts = self.connection, self.facts
        self.idle_since = monotonic()
        seconds = self.idle_since - began
        if connection.content:  # the transaction ended before the final dot
            connection.said.append((monotonic(), CONTENT, connection.content))
        said = facts.dialogue, connection.said
        if envelope.bare:
            facts = replace(facts, success_kind=self._success)
        connection.said = deque(maxlen=MAX_ENTRIES)
        for result in results:
            result.facts, result.seconds, result.said = facts, seconds, said
        if self.transactions == 1:
            self.facts = self.facts.kept()
