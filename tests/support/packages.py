"""Packages that some tests need, and the tests that are left out without them.

Mail servers exclude each other as packages. So `scripts/test-packages` only unpacks those, below
`folder()`, with packages of Node and the tests of Django; it installs the others.
"""

from __future__ import annotations

import os
import re
import shutil
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
INSTALLED = {
    "nsd": "nsd",
    "unbound": "unbound",
    "ldnsutils": "ldns-signzone",
    "dovecot-core": "dovecot",
    "dovecot-lmtpd": "/usr/lib/dovecot/lmtp",
    "faketime": "faketime",
    "gsasl": "gsasl",
    "prometheus": "promtool",
    "swaks": "swaks",
    "msmtp": "msmtp",
    "curl": "curl",
    "mutt": "mutt",
    "git-email": "/usr/lib/git-core/git-send-email",
    "libmailtools-perl": "/usr/share/perl5/Mail/Address.pm",
    "libauthen-sasl-perl": "/usr/share/perl5/Authen/SASL.pm",
    "libio-socket-ssl-perl": "/usr/share/perl5/IO/Socket/SSL.pm",
    "libsasl2-modules": "/usr/share/doc/libsasl2-modules",
    "nodejs": "node",
    "node-nodemailer": "/usr/share/nodejs/nodemailer/package.json",
    "php-cli": "php",
    "libphp-phpmailer": "/usr/share/php/libphp-phpmailer/autoload.php",
    "golang-go": "go",
    "golang-github-lib-pq-dev": "/usr/share/gocode/src/github.com/lib/pq/conn.go",
    "haproxy": "haproxy",
    "testssl.sh": "testssl",
    "chromium": "chromium",
    "chromium-driver": "chromedriver",
    "cron": "cron",
    "systemd": "systemd-analyze",
    "mmdebstrap": "mmdebstrap",
    "bubblewrap": "bwrap",
    "pgbouncer": "pgbouncer",
    "tmux": "tmux",
    "mailutils": "mail.mailutils",
    "opendkim": "opendkim",
    "opendkim-tools": "opendkim-testmsg",
    "libmail-dkim-perl": "/usr/share/perl5/Mail/DKIM/Verifier.pm",
    "python3-pandas": "/usr/lib/python3/dist-packages/pandas/__init__.py",
    "libmail-deliverystatus-bounceparser-perl": (
        "/usr/share/perl5/Mail/DeliveryStatus/BounceParser.pm"
    ),
}
"""A program or file of each of the packages that are installed."""

UNPACKED = {
    "postfix": "usr/sbin/posttls-finger",
    "exim4-daemon-light": "usr/sbin/exim4",
    "opensmtpd": "usr/sbin/smtpd",
    "sendmail-bin": "usr/libexec/sendmail/sendmail",
    "bsd-mailx": "usr/bin/bsd-mailx",
    "etcd-server": "usr/bin/etcd",
}
"""A program of each of the packages that are unpacked."""

NODE = ("axe-core", "pg", "postal-mime", "standardwebhooks")
"""Packages of Node, which are put beside the unpacked ones."""

DJANGO_TESTS = "django-tests"
"""The tests of Django, which are in its source package alone."""

PYTHON = {
    "patroni": ROOT / "packaging" / "cluster" / "patroni.lock",
    "kubernetes-validate": ROOT / "tests" / "support" / "kubernetes.lock",
    "svix": ROOT / "tests" / "support" / "svix.lock",
    "schemathesis": ROOT / "tests" / "support" / "schemathesis.lock",
}
"""The locks of Python packages that each have a virtual environment beside the unpacked ones."""

MODULES = {"atheris"}
"""Python packages that exist for some systems only."""

_PATH = "/usr/sbin:/usr/local/sbin:/sbin:/usr/bin:/usr/local/bin:/bin"


def folder() -> Path:
    """Return the folder with a folder for each unpacked package."""
    return Path(os.environ.get("PGMTA_TEST_PACKAGES") or ROOT / "var" / "packages").resolve()


def locked(package: str) -> str:
    """Return the requirement of a Python package as requirements-dev.lock has it, with hashes."""
    lock = (ROOT / "requirements-dev.lock").read_text(encoding="utf-8")
    [found] = re.findall(rf"^{re.escape(package)}==.*(?:\n    --hash.*)+", lock, re.MULTILINE)
    return str(found)


def django_tests() -> Path:
    """Return the folder of Django's tests, of the locked version."""
    version = locked("django").split()[0].replace("==", "-")
    return folder() / version / "tests"


def program(name: str) -> str | None:
    """Return the path of an installed program or file, or None."""
    if name.startswith("/"):
        return name if Path(name).exists() else None
    return shutil.which(name, path=_PATH)


def there(package: str) -> bool:
    """Whether the package is there, or 'root', if that is asked for."""
    if package == "root":
        return os.geteuid() == 0
    if package == DJANGO_TESTS:
        return django_tests().exists()
    if package in PYTHON:
        module = package.replace("-", "_")
        return any((folder() / package).glob(f"lib/python*/site-packages/{module}"))
    if package in MODULES:
        return find_spec(package) is not None
    if package in NODE:
        return (folder() / "node_modules" / package / "package.json").exists()
    if package in INSTALLED:
        return program(INSTALLED[package]) is not None
    return (folder() / package / UNPACKED[package]).exists()


def missing(packages: tuple[str, ...]) -> list[str]:
    """Return those that this machine lacks."""
    return [package for package in packages if not there(package)]
