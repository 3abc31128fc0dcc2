"""Mail that comes back to a VERP address: a late bounce, or a complaint (ARF)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.test_returned_mail import configuration, shape
from tests.support.system import System
from tests.support.waiting import until
from tests.suppressions.campaign import Campaign, sections


@pytest.mark.parametrize(
    ("name", "reasons", "bounced"),
    [
        ("postfix", ["joe@b.example bounced"], 1),
        ("complaint", ["joe@b.example complained"], 0),
        ("not-spam", [], 0),
        ("holidays", [], 0),
        ("postfix-delayed", [], 0),
    ],
)
def test_by_the_address_that_we_signed(
    system: System, campaign: Campaign, tmp_path: Path, name: str, reasons: list[str], bounced: int
) -> None:
    hop = system.hop()
    shaping = configuration(tmp_path, hop)
    system.queued(shaping=shaping, **sections(tmp_path, "https://mail.example"))
    campaign.add("joe@b.example")
    campaign.start()
    address = hop.wait_kept(1)[0].sender
    until(lambda: campaign.states() == {"joe@b.example": "sent"})
    mac = address.partition("@")[0][-1]
    forged = address.replace(f"{mac}@", f"{'0' if mac != '0' else '1'}@")
    system.enqueue(forged, content=shape(name), sender="")
    system.wait_queue(lambda rows: not rows and system.attempts(forged))
    assert campaign.reasons() == [], "an address that others made suppresses no recipient"
    system.enqueue(address, content=shape(name), sender="")
    system.wait_queue(lambda rows: not rows and system.attempts(address))
    assert campaign.reasons() == reasons
    (count,) = system.ask("SELECT bounced::integer, sent::integer FROM campaign_sums")
    assert count == {"bounced": bounced, "sent": 1}
