"""The parts that all sessions of one smtpd process share."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Callable
from dataclasses import dataclass

from pgmta.accounts.logins import Logins
from pgmta.accounts.network_limits import Bound, Excess, NetworkLimits
from pgmta.accounts.networks import NETWORK_FACTOR
from pgmta.daemon_role import SMTPD
from pgmta.features import loaded
from pgmta.intake.committer import Committer
from pgmta.intake.metadata_rules import MetadataRules
from pgmta.postgres.notify import Notifier
from pgmta.postgres.resources import Resources
from pgmta.service import start_part
from pgmta.tracing import tracing
from smtpd.config import SmtpdConfig
from smtpd.protocol import replies
from smtpd.recipients.directory import Directory
from smtpd.recipients.table import GroupedLook
from smtpd.server.database_gate import Gate
from smtpd.server.log import AcceptedLog, Notice, RefusalLog
from smtpd.server.memory import Memory
from smtpd.server.scheduler import Scheduler
from smtpd.server.session_figures import SessionFigures

MAX_TURNED_AWAY = 1000
"""So many connections over the limits may wait for their refusal."""
_REFUSAL_DELAY_S = 1.0
_LATE_TRANSACTION_S = 1.0  # for a connection that was accepted at the last moment before a stop


_EXCESS_REPLIES = {
    Excess.CONNECTIONS_OF_ADDRESS: replies.TOO_MANY_OF_ADDRESS,
    Excess.CONNECTIONS_OF_NETWORK: replies.TOO_MANY_OF_NETWORK,
    Excess.RATE_OF_ADDRESS: replies.TOO_FAST_OF_ADDRESS,
    Excess.RATE_OF_NETWORK: replies.TOO_FAST_OF_NETWORK,
}


@dataclass(eq=False, slots=True)
class Member:
    """A connection, as the process knows it: what it can ask of it."""

    hold_back: Callable[[], None]
    """Reads the next content in a turn, if there is much."""
    stop: Callable[[], None]
    """Ends the session, if no transaction is cut off by it."""


class Server:
    """Configuration, limits, the way into the queue, and the connections of a process.

    Raises ConfigError for a file of recipients with mistakes.
    """

    def __init__(self, config: SmtpdConfig, uri: str) -> None:
        self.config = config
        self.hostname = config.environment.hostname
        self.metadata = MetadataRules(config.metadata) if config.metadata else None
        """The rules for metadata; without any, all rows have the same empty metadata."""
        self.resources = Resources(uri, SMTPD.name)
        """The connections to PostgreSQL."""
        self._notifier = Notifier(self.resources)
        logged = config.log.accepted and config.log.level in ("debug", "info")
        self.loop = asyncio.get_running_loop()
        self.accepted = AcceptedLog(config.log, self.loop) if logged else None
        """The log of messages that were taken."""
        note = self.accepted.note if self.accepted else None
        self.committer = Committer(SMTPD, self.resources, config.ingest, self._notifier, note)
        outage = self.committer.outage
        users = config.uses_auth or any(each.xclient for each in config.listen)
        self.logins = Logins(self.resources, config.auth, outage) if users else None
        """How users log in, if they may at some listener."""
        self.gate = Gate(config.limits, self.committer)
        """Whether the database is quick enough for more mail."""
        recipients = config.relay.recipients
        self.directory = Directory(config, self.resources, outage) if recipients else None
        """The known recipients of relay domains; None: all are taken."""
        refuses = any(each.suppressed == "refuse" for each in config.listen)
        look = next(loaded("recipient_looks")) if refuses else None
        self.suppressions: GroupedLook | None = look and look(self.resources)
        """Knows who gets mail, by tenant and address; None: no listener asks."""
        self.tracing = tracing()
        """The part that makes spans; None unless OpenTelemetry is on."""
        self.gating: asyncio.Task[None] | None = None
        """The task that looks at the database, once it was started."""
        self.stopping = False
        process, numbers = secrets.token_hex(4), itertools.count(1)
        self.session_ids = (f"{process}-{number}" for number in numbers)
        """Names for sessions, that no other process gives."""
        self._refused = Notice("connections refused")
        self.refusals = RefusalLog()
        """The log of replies that refuse something."""
        self.figures = SessionFigures()
        """Counts of sessions, refusals and logins."""
        self.handshakes = 0
        """TLS sessions so far."""
        self.failed_handshakes = Notice("TLS handshakes failed")
        self.bad_headers = Notice("connections without a PROXY header refused")
        self._members: dict[Member, str] = {}  # each with the address for which it is counted
        self._turned_away = 0  # connections that wait for their refusal
        limits = config.limits
        self._limits = NetworkLimits(
            Bound(limits.connections_per_address, limits.new_connections_per_address),
            Bound(
                NETWORK_FACTOR * limits.connections_per_address,
                NETWORK_FACTOR * limits.new_connections_per_address,
            ),
            config.relay.networks if limits.exempt is None else limits.exempt,
        )
        self.memory = Memory(limits.memory, outage)
        self.scheduler = Scheduler(self.loop, self.memory)
        self._empty = asyncio.Event()
        self._empty.set()

    def start(self) -> None:
        """Begin to take mail to the database."""
        self._notifier.start()
        self.committer.start()
        self.gating = start_part("gate", self.gate.watch_database)

    def admit(self, member: Member, client: str) -> str:
        """Count a connection; return the reply of a refusal if there are too many, or ''."""
        full = len(self._members) >= self.config.limits.connections
        refusal = replies.TOO_MANY_CONNECTIONS if full else self._count(client)
        if refusal:
            self._note_refused(client, refusal)
        else:
            self._members[member] = client
            self.figures.count_session()
            self._empty.clear()
        return refusal

    def identify(self, member: Member, client: str) -> str:
        """Count an admitted connection for the client that its proxy names; as `admit`."""
        if refusal := self._count(client):
            self._note_refused(client, refusal)
        else:
            self._limits.release(self._members[member])
            self._members[member] = client
        return refusal

    def _count(self, client: str) -> str:
        excess = self._limits.admit(client)
        return _EXCESS_REPLIES[excess] if excess else ""

    def spares(self, client: str) -> bool:
        """Return whether the limits by address and network do not count for a client."""
        return self._limits.exempt(client)

    def _note_refused(self, client: str, reply: str) -> None:
        self.figures.count_turned_away()
        self._refused.note(client=client, reply=reply.format(self.hostname))

    @property
    def open_sessions(self) -> int:
        """Sessions that are open."""
        return len(self._members)

    def count_handshake(self, version: str) -> None:
        """Count a TLS session, such as one with TLSv1.3."""
        self.handshakes += 1
        self.figures.count_tls(version)

    def note_failed_handshake(self, **values: str) -> None:
        """Log and count a TLS handshake that failed."""
        self.figures.count_failed_handshake()
        self.failed_handshakes.note(**values)

    def turn_away(self, transport: asyncio.Transport, reply: bytes) -> None:
        """Refuse a connection after a pause: a client that comes again at once is slowed down."""
        if self._turned_away < MAX_TURNED_AWAY and not self.stopping:
            self._turned_away += 1
            self.loop.call_later(_REFUSAL_DELAY_S, self._turn_away, transport, reply)
        else:
            transport.write(reply)
            transport.close()

    def _turn_away(self, transport: asyncio.Transport, reply: bytes) -> None:
        self._turned_away -= 1
        if not transport.is_closing():
            transport.write(reply)
            transport.close()

    def hold_back(self, cause: Member) -> None:
        """Read the content of the other connections in turns, because too much comes at once."""
        for member in self._members:
            if member is not cause:
                member.hold_back()

    def release(self, member: Member) -> None:
        """Forget a connection that has ended."""
        if member in self._members:
            self._limits.release(self._members.pop(member))
        if not self._members:
            self._empty.set()

    async def stop(self, grace: float) -> bool:
        """End idle sessions, wait for the others; return False if some had to be cut off.

        Connections that the kernel has handed over just before may still do one transaction.
        """
        self.stopping = True
        clean = await self._end(_LATE_TRANSACTION_S) or await self._end(grace - _LATE_TRANSACTION_S)
        if self.logins:
            await self.logins.close()
        if self.gating:
            self.gating.cancel()
            await asyncio.wait([self.gating])
        if self.directory:
            await self.directory.stop()
        if self.suppressions:
            await self.suppressions.stop()
        await self._notifier.close()
        await self.committer.stop()
        await self.resources.close()
        if self.accepted:
            self.accepted.write_line()
        return clean

    async def _end(self, seconds: float) -> bool:
        for member in list(self._members):
            member.stop()
        try:
            async with asyncio.timeout(seconds):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True
