"""OpenDKIM as milter of Postfix, and the key that it and pgmta sign with."""

import subprocess
from pathlib import Path

from bench.peer.system import Daemon

DOMAIN = "from.bench.test"
"""The domain of From in the mail of the bench."""

_KINDS = {
    "rsa": ("RSA", "-pkeyopt", "rsa_keygen_bits:2048"),
    "ed25519": ("ED25519",),
}


def make_key(directory: Path, kind: str) -> Path:
    """Write a new key, and return its path."""
    path = directory / f"{kind}.pem"
    command = ["openssl", "genpkey", "-algorithm", *_KINDS[kind], "-out", str(path)]
    subprocess.run(command, check=True, capture_output=True)
    path.chmod(0o600)
    return path


def signer_socket(directory: Path) -> Path:
    """Return the socket of OpenDKIM: over TCP each message would wait for delayed ACKs."""
    return directory / "opendkim" / "socket"


def start_signer(directory: Path, kind: str) -> Daemon:
    """Start OpenDKIM; it signs the same fields in the same canonical form as pgmta."""
    place = directory / "opendkim"
    place.mkdir()
    place.chmod(0o711)  # Postfix runs as another user
    lines = {
        "Mode": "s",
        "Domain": DOMAIN,
        "Selector": "bench",
        "KeyFile": make_key(place, kind),
        "SignatureAlgorithm": "rsa-sha256" if kind == "rsa" else "ed25519-sha256",
        "Canonicalization": "relaxed/relaxed",
        "OversignHeaders": "From,Subject,Date",
        "Socket": f"local:{signer_socket(directory)}",
        "UMask": "000",
        "Syslog": "no",
        "RequireSafeKeys": "no",
        "TemporaryDirectory": place,
    }
    config = place / "opendkim.conf"
    config.write_text("".join(f"{key} {value}\n" for key, value in lines.items()))
    command: list[str | Path] = ["/usr/sbin/opendkim", "-f", "-x", config]
    return Daemon("opendkim", command, place / "log", {})
