"""Recipients that the next hop knows, asked over a few kept connections."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress

from aiosmtplib import SMTP, SMTPException

from pgmta.config.types import HostPort
from pgmta.logs import get
from pgmta.mail.address import in_a_labels
from smtpd.config.relay import CalloutSettings as Config
from smtpd.recipients.recipient_verdict import Remembered, Verdict

KNOWN_S = 86400.0  # for which an accepted recipient counts
UNKNOWN_S = 600.0  # for which a refused one counts
_ANSWER_TIMEOUT_S = 10.0
_MAX_CONNECTIONS = 4
_UNSURE_S = 5.0  # a verdict without an answer counts so long, and a host that is away is left out
_IDLE_CONNECTION_S = 5.0
_LOG_INTERVAL_S = 60.0  # for lines about one host
_ENHANCED = re.compile(r"5\.(\d{1,3})\.(\d{1,3})(?: |$)")
_UNKNOWN_RECIPIENT_CODES = (550, 551, 553)  # of replies without an enhanced code
CallError = (SMTPException, OSError, UnicodeError, TimeoutError)
"""Errors of a callout: there was no answer about the recipient."""

log = get("smtpd")


class Callout:
    """Asks each recipient once for all sessions, and remembers the answer.

    Next hops that do not answer cost ten seconds at most, and then nothing for five seconds. A
    recipient that was known once stays known meanwhile.
    """

    def __init__(self, config: Config, hostname: str) -> None:
        self._config = config
        self._hostname = hostname
        self._memory = Remembered()
        self._asking: dict[tuple[str, ...], asyncio.Task[None]] = {}
        self._places = asyncio.Semaphore(_MAX_CONNECTIONS)
        self._idle: list[NextHop] = []
        self._away: dict[HostPort, float] = {}  # hosts, and until when they are left out
        self._logged: dict[HostPort, float] = {}

    def verdict(self, addresses: tuple[str, ...]) -> Verdict | None:
        """Return the last answer, if it still counts."""
        return self._memory.get(addresses)

    async def look_up(self, addresses: tuple[str, ...]) -> None:
        """Ask the next hop, or wait for the answer that another session waits for."""
        task = self._asking.get(addresses)
        if not task:
            task = asyncio.get_running_loop().create_task(self._look_up(addresses))
            self._asking[addresses] = task
            task.add_done_callback(lambda _: self._asking.pop(addresses, None))
        await asyncio.shield(task)

    async def stop(self) -> None:
        """Close the connections."""
        for task in list(self._asking.values()):
            task.cancel()
        while self._idle:
            self._idle.pop().close()

    async def _look_up(self, addresses: tuple[str, ...]) -> None:
        config, verdict = self._config, Verdict.UNSURE
        with suppress(TimeoutError):
            async with asyncio.timeout(_ANSWER_TIMEOUT_S), self._places:
                verdict = await self._ask(addresses[0])
        if verdict is Verdict.UNSURE and config.unavailable == "accept":
            self._memory.keep(addresses, Verdict.KNOWN, _UNSURE_S)
            return
        seconds = {Verdict.KNOWN: KNOWN_S, Verdict.UNKNOWN: UNKNOWN_S}
        self._memory.keep(addresses, verdict, seconds.get(verdict, _UNSURE_S))

    async def _ask(self, address: str) -> Verdict:
        while self._idle:
            with suppress(*CallError):  # raised if the connection was closed meanwhile
                return await self._ask_over(self._idle.pop(), address)
        loop = asyncio.get_running_loop()
        for host in self._config.hosts:
            if self._away.get(host, 0.0) > loop.time():
                continue
            hop = NextHop(host, self._hostname)
            try:
                await hop.connect()
                return await self._ask_over(hop, address)
            except asyncio.CancelledError:  # there was no answer in time, or the process stops
                self._note(host, "no answer in time")
                raise
            except CallError as error:
                self._note(host, str(error) or type(error).__name__)
        return Verdict.UNSURE

    async def _ask_over(self, hop: NextHop, address: str) -> Verdict:
        try:
            verdict = await hop.ask(address)
        except BaseException:
            hop.close()
            raise
        if hop.usable:
            self._idle.append(hop)
            asyncio.get_running_loop().call_later(_IDLE_CONNECTION_S, self._close, hop)
        return verdict

    def _close(self, hop: NextHop) -> None:
        """Close a connection that no callout has used since."""
        if hop in self._idle:
            self._idle.remove(hop)
            hop.close()

    def _note(self, host: HostPort, reason: str) -> None:
        now = asyncio.get_running_loop().time()
        self._away[host] = now + _UNSURE_S
        if now >= self._logged.get(host, 0.0) + _LOG_INTERVAL_S or host not in self._logged:
            self._logged[host] = now
            log.warning("next hop does not say who is known", host=str(host), reason=reason)


class NextHop:
    """One connection to a next hop. Each method raises one of CallError.

    TLS is opportunistic and checks no certificate, because the session has no secret.
    """

    def __init__(self, host: HostPort, hostname: str) -> None:
        self._client = SMTP(
            hostname=host.host,
            port=host.port,
            local_hostname=hostname,
            timeout=_ANSWER_TIMEOUT_S,
            validate_certs=False,
        )

    async def connect(self) -> None:
        """Connect, with EHLO and STARTTLS."""
        await self._client.connect()

    async def ask(self, address: str) -> Verdict:
        """Return the verdict about a recipient; MAIL is from the null reverse-path."""
        client = self._client
        address = in_a_labels(address)
        options = [] if address.isascii() else [b"SMTPUTF8"]
        code, text = await client.execute_command(b"MAIL", b"FROM:<>", *options)
        if code == 250:
            code, text = await client.execute_command(b"RCPT", f"TO:<{address}>".encode())
            verdict = verdict_of(code, text)
            code, text = await client.execute_command(b"RSET")
        else:
            verdict = Verdict.UNSURE
        if code == 421:
            self.close()
        return verdict

    @property
    def usable(self) -> bool:
        """Whether another recipient may be asked for."""
        return self._client.is_connected

    def close(self) -> None:
        """Close at once."""
        self._client.close()


def verdict_of(code: int, text: str) -> Verdict:
    """Return what the reply to RCPT says about the recipient.

    A reply about policy, size, or a full mailbox is no reply about who the recipient is.
    """
    if 200 <= code < 300:
        return Verdict.KNOWN
    if not 500 <= code < 600:
        return Verdict.UNSURE
    enhanced = _ENHANCED.match(text)
    if enhanced:
        unknown = enhanced[1] == "1" or enhanced.groups() == ("2", "1")
    else:
        unknown = code in _UNKNOWN_RECIPIENT_CODES
    return Verdict.UNKNOWN if unknown else Verdict.UNSURE
