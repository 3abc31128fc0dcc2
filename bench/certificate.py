"""A self-signed certificate with an ECDSA key (P-256), the same kind for every server."""

import subprocess
from pathlib import Path


def make_certificate(directory: Path, name: str) -> tuple[Path, Path]:
    """Write a new certificate for the name, and its key; return both paths."""
    key, certificate = directory / f"{name}.key", directory / f"{name}.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-days", "2", "-subj", f"/CN={name}.bench.test"),
            *("-addext", f"subjectAltName=DNS:{name}.bench.test,DNS:localhost"),
            *("-keyout", key, "-out", certificate),
        ],
        check=True,
        capture_output=True,
    )
    key.chmod(0o600)
    return certificate, key
