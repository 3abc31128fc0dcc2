"""Mail as JSON, for a database of any encoding."""

from __future__ import annotations

from pgmta import Attachment, Mail
from pgmta.client.mail_json import as_array, as_text, mail_json


def test_texts_are_characters_or_ascii_alike() -> None:
    """A database of octets (SQL_ASCII) takes no character beyond ASCII that is escaped."""
    mail = Mail(
        sender="shop@a.example", to=["r@b.example"], subject="Grüße", body="x",
        attachments=[Attachment("Grüße.txt", b"x")],
    )  # fmt: skip
    assert as_array([mail_json(mail)])[0].count("Grüße") == 2
    assert as_text([mail_json(mail, ascii_only=True)]).isascii()
