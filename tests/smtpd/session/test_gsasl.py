"""GNU SASL as a client: the mechanisms as another implementation has them."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

import pytest

from tests.support.certificates import Certificate
from tests.support.serving import serving
from tests.support.users import add_user
from tests.support.waiting import PATIENCE

PASSWORD = "pencil, =42=,"


@pytest.mark.needs("gsasl")
@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "PLAIN", "LOGIN"])
def test_gsasl_logs_in_over_tls(database: str, tmp_path: Path, mechanism: str) -> None:
    add_user(database, "a=n,n@a.example", PASSWORD)
    root = Certificate.root()
    certificate, key = root.issue("localhost").files(tmp_path)
    trusted = tmp_path / "root.pem"
    trusted.write_text(ssl.DER_cert_to_PEM_cert(root.der))
    files = [{"certificate": str(certificate), "key": str(key)}]

    def gsasl(port: int, password: str) -> subprocess.CompletedProcess[str]:
        command = ["gsasl", "--smtp", f"--connect=localhost:{port}", f"--mechanism={mechanism}",
                   "--authentication-id=a=n,n@a.example", f"--password={password}",
                   "--starttls", "--no-cb", f"--x509-ca-file={trusted}"]  # fmt: skip
        return subprocess.run(
            command, input="QUIT\n", text=True, capture_output=True, timeout=PATIENCE, check=False
        )

    listen = [{"role": "submission"}]
    with serving(database, listen=listen, certificates=files) as port:
        right = gsasl(port, PASSWORD)
        assert right.returncode == 0, right
        assert "235 2.7.0" in right.stdout
        assert "TLS session" in right.stderr + right.stdout or "STARTTLS" in right.stdout
        wrong = gsasl(port, "pencil")
        assert wrong.returncode != 0
        assert "235" not in wrong.stdout
