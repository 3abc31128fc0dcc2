"""The settings of TLS sessions with hosts, and the sessions that can be resumed."""

from __future__ import annotations

import os
import ssl
from collections import OrderedDict
from functools import cached_property

from queued.config import Tls
from queued.delivery.tls.tls_policy import TlsMode

_MAX_HOSTS = 1000  # whose last session is kept; each takes some KB


class ResumingContext(ssl.SSLContext):
    """Resumes the last session with a host name (RFC 8446, section 2.2).

    A session with one message takes 750 µs of CPU so, else 940 (docs/decisions/tls.md).
    A session was checked when it was new, under these settings and for this name.
    """

    _last: OrderedDict[str, ssl.SSLSession]

    def keep(self, name: str, found: ssl.SSLObject) -> None:
        """Keep a session whose host was accepted; tickets have come by the reply to EHLO.

        One that was resumed stays as it is, because to read a session costs more than it saves.
        """
        if found.session_reused:
            return
        session = found.session
        if session is not None and session.has_ticket:
            self._sessions[name] = session
            self._sessions.move_to_end(name)
            if len(self._sessions) > _MAX_HOSTS:
                self._sessions.popitem(last=False)

    def forget(self, name: str) -> None:
        """Forget the session of a host that failed."""
        self._sessions.pop(name, None)

    @property
    def _sessions(self) -> OrderedDict[str, ssl.SSLSession]:
        if not hasattr(self, "_last"):
            self._last = OrderedDict()
        return self._last

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """Begin a TLS session; asyncio and uvloop call this without one to resume."""
        if session is None and isinstance(server_hostname, str):
            session = self._sessions.get(server_hostname)
        return super().wrap_bio(incoming, outgoing, server_side, server_hostname, session)


class TlsContexts:
    """The settings of all sessions: for any certificate, for those of trusted CAs, and for DANE.

    They are made at their first use, because OpenSSL reads the CAs of the system in 20 ms.
    """

    def __init__(self, config: Tls) -> None:
        self._minimum = ssl.TLSVersion[config.minimum.replace(".", "_")]
        self._ca = config.ca

    def _made(self) -> ResumingContext:
        context = ResumingContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = self._minimum
        return context

    def _unverified(self) -> ResumingContext:
        context = self._made()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context

    @cached_property
    def opportunistic(self) -> ResumingContext:
        """For any certificate: a weak cipher is better than plain text (RFC 7435)."""
        context = self._unverified()
        context.set_ciphers("DEFAULT:@SECLEVEL=0")
        return context

    @cached_property
    def dane(self) -> ResumingContext:
        """For certificates that `dane` checks after the handshake."""
        return self._unverified()

    @cached_property
    def pkix(self) -> ResumingContext:
        """For certificates of trusted CAs with the host's name as subjectAltName (RFC 6125)."""
        context = self._made()
        context.hostname_checks_common_name = False
        if self._ca is None:
            context.load_default_certs()
        elif os.path.isdir(self._ca):
            context.load_verify_locations(capath=self._ca)
        else:
            context.load_verify_locations(self._ca)
        return context

    def find_context(self, mode: TlsMode) -> ResumingContext:
        """Return the settings for a policy of this mode."""
        if mode is TlsMode.VERIFY:
            return self.pkix
        return self.dane if mode is TlsMode.DANE else self.opportunistic
