"""Run Django's own tests of mail with pgmta's backend in place of its backend for tests.

    python -m tests.frameworks.django_suite URI FOLDER

A message in the outbox has the octets that the queue has. FOLDER has the tests of Django's source
package. Prints the number of tests, and exits with 1 if one of them failed.
"""

from __future__ import annotations

import copy
import sys
import unittest
import warnings
from functools import partial
from typing import Any

import psycopg
from django.core import mail
from django.core.mail.backends import locmem
from django.test import SimpleTestCase
from django.test.runner import DiscoverRunner
from django.utils.deprecation import RemovedInNextVersionWarning

from pgmta.django import EmailBackend
from tests.frameworks.django_settings import configure

OF_OTHERS = (
    ("LocmemBackendTests", "test_validate_multiline_headers"),
    ("SMTPBackendTests", "test_avoids_sending_to_invalid_addresses"),
    ("SMTPBackendTests", "test_encodes_idna_in_smtp_commands"),
    ("SMTPBackendTests", "test_does_not_reencode_idna"),
    ("SMTPBackendTests", "test_rejects_non_ascii_local_part"),
    ("SMTPBackendTests", "test_send_messages_with_empty_list_does_not_open_connection"),
    ("SMTPBackendTests", "test_send_messages_zero_sent"),
    ("SMTPBackendTests", "test_fail_silently_arg_accepted"),
)
"""Tests of other backends that are about messages and envelopes, and not about a connection."""


class Outbox(EmailBackend):
    """The backend of pgmta, and beside it the outbox, with the octets of the queue."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if not hasattr(mail, "outbox"):
            mail.outbox = []

    def send_messages(self, email_messages: Any) -> int:
        """Send the messages, and put them into the outbox."""
        messages = list(email_messages)
        number = super().send_messages(messages)
        for message in messages:
            if message.recipients():
                found = copy.deepcopy(message)
                found.sent_using = self.alias
                found.message = partial(parsed, stored(message.pgmta_id))
                mail.outbox.append(found)
        return number


def stored(message_id: int) -> bytes:
    """Return the content of a message in the queue."""
    with psycopg.connect(URI) as db:
        query = "SELECT body FROM pgmta.messages WHERE id = %s"
        (body,) = db.execute(query, (message_id,)).fetchone() or (b"",)
    return bytes(body)


def parsed(content: bytes) -> Any:
    """Return it as Django's tests do, with their line ends."""
    from mail.tests import message_from_bytes  # type: ignore[import-not-found]

    return message_from_bytes(content.replace(b"\r\n", b"\n"))


def suite() -> unittest.TestSuite:
    """Return Django's tests, and those of its backends for ours."""
    from mail import (  # type: ignore[import-not-found]
        test_backends,
        test_sendtestemail,
        tests,
    )

    class PgmtaBackendTests(test_backends.SharedEmailBackendTests, SimpleTestCase):  # type: ignore[misc]
        backend_class = EmailBackend

        def get_mailbox_content(self) -> list[Any]:
            with psycopg.connect(URI) as db:
                query = "SELECT body FROM pgmta.messages ORDER BY id"
                return [parsed(bytes(body)) for (body,) in db.execute(query)]

        def flush_mailbox(self) -> None:
            with psycopg.connect(URI) as db:
                db.execute("DELETE FROM pgmta.queue")

        def get_smtp_envelopes(self) -> list[dict[str, Any]]:
            with psycopg.connect(URI) as db:
                query = (
                    "SELECT sender, array_agg(recipient ORDER BY id) FROM pgmta.queue GROUP BY 1"
                )
                return [{"mail_from": s, "rcpt_tos": r} for s, r in db.execute(query)]

        def setUp(self) -> None:
            super().setUp()
            self.flush_mailbox()

    for case in vars(tests).values():
        if hasattr(case, "test_lazy_addresses"):
            case.test_lazy_addresses = None  # without a domain: the queue has no next hop for them
    for kind, name in OF_OTHERS:
        setattr(PgmtaBackendTests, name, getattr(getattr(test_backends, kind), name))
    load = unittest.defaultTestLoader
    loaded = [load.loadTestsFromModule(module) for module in (tests, test_sendtestemail)]
    return unittest.TestSuite([load.loadTestsFromTestCase(PgmtaBackendTests), *loaded])


def run() -> unittest.TestResult:
    """Run them as Django's runner does."""
    runner = DiscoverRunner(verbosity=0, interactive=False)
    runner.setup_test_environment()
    locmem.EmailBackend = Outbox
    SimpleTestCase.databases = {"default"}
    return unittest.TextTestRunner(verbosity=0).run(suite())


if __name__ == "__main__":
    URI, folder = sys.argv[1:]
    sys.path.insert(0, folder)
    warnings.simplefilter("error", RemovedInNextVersionWarning)
    configure(URI)
    result = run()
    print(result.testsRun)
    sys.exit(not result.wasSuccessful())
