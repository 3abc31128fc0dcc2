"""Parcels: the mails of send_many, in order."""

from __future__ import annotations

from concurrent.futures import Future

from pgmta import Mail, RawMail
from pgmta.client.parcels import PARCEL_OCTETS, Batch, Found


def test_a_large_mail_is_alone() -> None:
    """Whatever becomes of it, the others have their own answer."""
    small = Mail(sender="shop@a.example", to=["r@b.example"], subject="Small", body="x")
    large = RawMail("shop@a.example", ["r@b.example"], b"x" * PARCEL_OCTETS)
    batch = Batch[Future[Found]]([small, small, large, small], Future, "")
    parcels = [list(each.places) for each in batch.parcels() if each]
    assert parcels == [[0, 1], [2], [3]]
