"""testssl.sh against STARTTLS."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.clients.site import HOST, Site

_HARMLESS = ("OK", "INFO", "LOW", "DEBUG")
_EXPECTED = {"cert_revocation", "engine_problem"}
"""The test CA offers no revocation, and the client's openssl has no GOST."""
_BUSY = {"sessionresumption_ID", "sessionresumption_ticket"}
"""On a busy machine these checks of testssl.sh fail by themselves, and it warns of that."""


@pytest.mark.needs("testssl.sh")
@pytest.mark.timeout(430)
def test_testssl_finds_nothing(site: Site) -> None:
    """Nothing of MEDIUM or worse, but for what the test CA lacks."""
    report = site.folder / "report.json"
    tests = ("-p", "-s", "-f", "-P", "-S", "-U")  # all but clients and single ciphers
    done = subprocess.run(
        [
            *("testssl", "--quiet", "--color", "0", "--warnings", "off", "--ip", "127.0.0.1"),
            *("--nodns", "min", "--add-ca", site.ca, "--jsonfile", report, *tests),
            *("-t", "smtp", f"{HOST}:{site.submission}"),
        ],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    print(done.stdout, done.stderr)
    findings = json.loads(report.read_text())
    bad = {f["id"]: f["finding"] for f in findings if f["severity"] not in _HARMLESS}
    assert set(bad) <= _EXPECTED | _BUSY, bad
    assert all("check failed" in bad[name] for name in _BUSY & set(bad)), bad
    severities = {f["id"]: f["severity"] for f in findings}
    assert severities["TLS1_3"] == severities["TLS1_2"] == "OK"
    assert {"secure_renego", "CRIME_TLS", "LUCKY13", "cert_trust"} <= set(severities)
