"""The TLS of a listener: its certificates by name, read again when their files change."""

from __future__ import annotations

import os
import ssl
from collections.abc import Sequence
from pathlib import Path

from smtpd.config import Certificate, ClientCertificates
from smtpd.tls.identity import CertificateProblem, Identity

_TICKETS = 1  # per session; a second one would serve a client that opens two sessions at once


class Contexts:
    """Chooses the certificate of a TLS session by the name that the client asks for (RFC 6066).

    The first certificate is the default. Certificates of one name with keys of different kinds are
    offered together. `load` comes first.
    """

    def __init__(self, entries: Sequence[Certificate], clients: ClientCertificates) -> None:
        self._entries = entries
        self.clients = clients
        """Clients that are known by their certificate."""
        self._marks: object = None  # of the files, when they were read
        self._names: dict[str, ssl.SSLContext] = {}
        self.identities: list[Identity] = []
        """As last read, in the order of the configuration."""
        self.context: ssl.SSLContext
        """For the next session; it changes itself to that of the name."""

    @property
    def files(self) -> list[Path]:
        """All files that are read."""
        found = [path for entry in self._entries for path in (entry.certificate, entry.key) if path]
        return [*found, self.clients.authorities] if self.clients.authorities else found

    def changed(self) -> bool:
        """Return whether a file has changed since `load` last read it, or tried to."""
        return self._marks != self._look()

    def load(self) -> None:
        """Read all files. Raises CertificateProblem; then the certificates stay as they were."""
        self._marks = self._look()
        identities = [Identity.read(entry) for entry in self._entries]
        names: dict[str, tuple[Identity, ...]] = {}
        for name in dict.fromkeys(name for one in identities for name in one.names):
            names[name] = _of_each_kind(identities, name)
        first = identities[0]
        default = names[first.names[0]] if first.names else (first,)
        if first not in default:  # another one of its kind has the same name
            default = (first, *(one for one in default if one.kind != first.kind))
        made: dict[tuple[Identity, ...], ssl.SSLContext] = {}
        for group in (default, *names.values()):
            if group not in made:
                made[group] = self._make(group)
        self.identities = identities
        self._names = {name: made[group] for name, group in names.items()}
        context = made[default]
        if len(made) > 1:
            context.sni_callback = self._choose
        self.context = context

    def _look(self) -> object:
        marks: list[object] = []
        for path in self.files:
            try:
                found = os.stat(path)
                marks.append((found.st_ino, found.st_size, found.st_mtime_ns))
            except OSError as error:
                marks.append(error.errno)
        return marks

    def _make(self, identities: Sequence[Identity]) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION  # costs the server more than the client
        context.num_tickets = _TICKETS
        for identity in identities:
            identity.load_into(context)
        if self.clients.authorities:
            self._ask_clients(context, self.clients.authorities)
        return context

    def _ask_clients(self, context: ssl.SSLContext, authorities: Path) -> None:
        context.verify_mode = ssl.CERT_OPTIONAL
        context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
        try:
            context.load_verify_locations(authorities)
        except ssl.SSLError:
            raise CertificateProblem(f"{authorities}: has no certificate in PEM") from None
        except OSError as error:
            raise CertificateProblem(f"{authorities}: {error.strerror}") from None

    def _choose(self, session: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
        """Give a session the certificate of the name, if there is one (RFC 6125, 6.4.3)."""
        if name:
            name = name.lower()
            found = self._names.get(name) or self._names.get(f"*.{name.partition('.')[2]}")
            if found:
                session.context = found


def _of_each_kind(identities: Sequence[Identity], name: str) -> tuple[Identity, ...]:
    """Return the first identity of each kind that has the name."""
    kinds: dict[str, Identity] = {}
    for identity in identities:
        if name in identity.names:
            kinds.setdefault(identity.kind, identity)
    return tuple(kinds.values())
