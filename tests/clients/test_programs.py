"""Programs that send mail: over STARTTLS and TLS from the first octet, with a password."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.clients.site import DOMAIN, HOST, PASSWORD, USER, Site

TO = f"alice@{DOMAIN}"
MESSAGE = f"From: {USER}\nTo: {TO}\nSubject: hello\n\nfrom a client\n.\n..two dots\nend\n"
Client = Callable[[Site, int, bool], None]


def swaks(site: Site, port: int, implicit: bool) -> None:
    """Swaks checks the certificate only with `--tls-verify`."""
    site.run(
        [
            *("swaks", "--server", HOST, "--port", str(port)),
            *("--tls-on-connect" if implicit else "--tls", "--tls-verify"),
            *("--tls-ca-path", site.ca, "--auth", "PLAIN,LOGIN"),
            *("--auth-user", USER, "--auth-password", PASSWORD),
            *("--from", USER, "--to", TO, "--data", MESSAGE.replace("\n", "\\n")),
        ]
    )


def msmtp(site: Site, port: int, implicit: bool) -> None:
    config = site.file(
        "msmtprc",
        f"account default\nhost {HOST}\nport {port}\nfrom {USER}\nauth scram-sha-256\n"
        f"user {USER}\npassword {PASSWORD}\ntls on\n"
        f"tls_starttls {'off' if implicit else 'on'}\ntls_trust_file {site.ca}\n",
    )
    site.run(["msmtp", "-C", config, TO], MESSAGE)


def curl(site: Site, port: int, implicit: bool) -> None:
    message = site.file("message", MESSAGE.replace("\n", "\r\n"))
    site.run(
        [
            *("curl", "-sS", "--ssl-reqd", "--cacert", site.ca, "--user", f"{USER}:{PASSWORD}"),
            *("--mail-from", USER, "--mail-rcpt", TO, "--upload-file", message),
            f"{'smtps' if implicit else 'smtp'}://{HOST}:{port}/client.example",
        ]
    )


def mutt(site: Site, port: int, implicit: bool) -> None:
    user = USER.replace("@", "%40")
    scheme = "smtps" if implicit else "smtp"
    config = site.file(
        "muttrc",
        f"set smtp_url='{scheme}://{user}@{HOST}:{port}/'\nset smtp_pass='{PASSWORD}'\n"
        "set ssl_force_tls=yes\nset smtp_authenticators='plain'\nset ssl_verify_dates=yes\n"
        f"set ssl_ca_certificates_file='{site.ca}'\nset ssl_usesystemcerts=no\n"
        f"set from='{USER}'\nset envelope_from_address='{USER}'\nset use_envelope_from=yes\n"
        "set copy=no\n",
    )
    body = MESSAGE.partition("\n\n")[2]
    site.run(["mutt", "-n", "-F", config, "-s", "hello", "--", TO], body)


def git_send_email(site: Site, port: int, implicit: bool) -> None:
    body = MESSAGE.partition("\n\n")[2]
    patch = site.file("0001-x.patch", f"From: {USER}\nSubject: [PATCH] hello\n\n{body}")
    site.run(
        [
            *("git", "send-email", "--quiet", "--confirm=never", "--suppress-cc=all"),
            *(f"--smtp-server={HOST}", f"--smtp-server-port={port}"),
            f"--smtp-encryption={'ssl' if implicit else 'tls'}",
            *(f"--smtp-ssl-cert-path={site.ca}", f"--smtp-user={USER}"),
            *(f"--smtp-pass={PASSWORD}", f"--from={USER}", f"--to={TO}", patch),
        ],
        GIT_CONFIG_GLOBAL="/dev/null",
        GIT_AUTHOR_NAME="me",
        GIT_AUTHOR_EMAIL=USER,
        GIT_COMMITTER_NAME="me",
        GIT_COMMITTER_EMAIL=USER,
    )


@pytest.mark.parametrize("implicit", [False, True], ids=["starttls", "implicit"])
@pytest.mark.parametrize(
    "client",
    [
        pytest.param(swaks, marks=pytest.mark.needs("swaks", "libio-socket-ssl-perl")),
        pytest.param(msmtp, marks=pytest.mark.needs("msmtp")),
        pytest.param(curl, marks=pytest.mark.needs("curl")),
        pytest.param(mutt, marks=pytest.mark.needs("mutt")),
        pytest.param(
            git_send_email,
            marks=pytest.mark.needs(
                "git-email", "libauthen-sasl-perl", "libio-socket-ssl-perl", "libmailtools-perl"
            ),
        ),
    ],
)
def test_program(site: Site, client: Client, implicit: bool) -> None:
    client(site, site.implicit if implicit else site.submission, implicit)
    row = site.submitted("from a client")
    assert row["body"].rstrip().endswith(b"from a client\r\n.\r\n..two dots\r\nend")
