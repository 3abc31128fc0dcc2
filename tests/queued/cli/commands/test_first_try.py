"""The certificate and the user that `queuectl up` makes."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import psycopg
from cryptography import x509

from pgmta.password import matches
from queued.cli.commands.up import DEMO_USER, make_certificate, make_user


def test_the_certificate_stays_until_it_is_about_to_expire(tmp_path: Path) -> None:
    path = make_certificate(tmp_path)
    assert path.stat().st_mode & 0o777 == 0o600
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(path)
    first = x509.load_pem_x509_certificate(path.read_bytes())
    assert make_certificate(tmp_path) == path
    assert x509.load_pem_x509_certificate(path.read_bytes()) == first
    path.write_text("nothing")
    make_certificate(tmp_path)
    assert x509.load_pem_x509_certificate(path.read_bytes()) != first


def test_the_user_keeps_the_password(tmp_path: Path, database: str, db: psycopg.Connection) -> None:
    for _ in range(2):
        path = asyncio.run(make_user(tmp_path, database))
        assert path.stat().st_mode & 0o777 == 0o600
        [(name, known)] = db.execute("SELECT name, password FROM users").fetchall()
        assert name == DEMO_USER
        assert matches(known, path.read_bytes())
