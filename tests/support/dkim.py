"""Keys that sign mail, and their records for dkimpy."""

from __future__ import annotations

from pathlib import Path

import dkim

from queued.signing.signing_key import Private, new_private, pem_of, public_of, record_of, type_of

DOMAIN = "a.example"


class Keys:
    """Makes keys in a folder, and knows their records by domain name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.records: dict[str, str] = {}
        self.private: dict[str, Private] = {}

    def make(self, selector: str, kind: str = "ed25519", domain: str = DOMAIN) -> Path:
        path = self.folder / f"{domain}.{selector}.pem"
        key = new_private(kind, 2048)
        path.write_text(pem_of(key))
        path.chmod(0o600)
        self.private[f"{domain}/{selector}"] = key
        record = record_of(type_of(key), public_of(key))
        self.records[f"{selector}._domainkey.{domain}"] = record
        return path

    def entry(self, selector: str, kind: str = "ed25519", domain: str = DOMAIN) -> dict[str, str]:
        """The same, as queued.yaml names it."""
        path = self.make(selector, kind, domain)
        return {"domain": domain, "selector": selector, "file": str(path)}

    def lookup(self, name: bytes, timeout: int = 5) -> bytes | None:
        """The record, as dkimpy asks for it."""
        found = self.records.get(name.decode().rstrip("."))
        return found.encode() if found else None

    def signers(self, content: bytes) -> list[str]:
        """The keys whose signatures dkimpy verifies, in order; 'bad' for the others."""
        found = []
        header = content.partition(b"\r\n\r\n")[0] + b"\r\n"
        for number in range(header.count(b"DKIM-Signature:")):
            one = dkim.DKIM(content)
            try:
                good = one.verify(number, self.lookup)
            except dkim.ValidationError:  # the hash of the body
                good = False
            fields = one.signature_fields
            name = f"{fields[b'd'].decode()}/{fields[b's'].decode()}"
            found.append(name if good else f"bad {name}")
        return found
