"""Mail that comes back to a VERP address: a late bounce, or a complaint (ARF)."""

from __future__ import annotations

from pathlib import Path

from tests.features.suppressions.campaign import Campaign, sections, token
from tests.scenarios.test_returned_mail import configuration, shape
from tests.support.system import System
from tests.support.waiting import until

REASONS = {  # what a returned mail writes into the suppressions, by its name
    "postfix": "bounced",
    "complaint": "complained",
    "not-spam": None,
    "holidays": None,
    "postfix-delayed": None,
}


def test_by_the_address_that_we_signed(system: System, campaign: Campaign, tmp_path: Path) -> None:
    hop = system.hop()
    shaping = configuration(tmp_path, hop)
    system.queued(shaping=shaping, **sections(tmp_path, "https://mail.example"))
    campaign.add(*(f"{name}@b.example" for name in REASONS))
    campaign.start()
    verp = {kept.recipients[0]: kept.sender for kept in hop.wait_kept(len(REASONS))}
    until(lambda: set(campaign.states().values()) == {"sent"})
    wanted: list[str] = []
    for name, reason in REASONS.items():
        address = verp[f"{name}@b.example"]
        mac = address.partition("@")[0][-1]
        forged = address.replace(f"{mac}@", f"{'0' if mac != '0' else '1'}@")
        system.enqueue(forged, content=shape(name), sender="")
        system.wait_queue(lambda rows, to=forged: not rows and system.attempts(to))  # type: ignore[misc]
        assert campaign.reasons() == sorted(wanted), "an address that others made suppresses nobody"
        system.enqueue(address, content=shape(name), sender="")
        system.wait_queue(lambda rows, to=address: not rows and system.attempts(to))  # type: ignore[misc]
        wanted += [f"{name}@b.example {reason}"] if reason else []
        assert campaign.reasons() == sorted(wanted), name
    (count,) = system.ask("SELECT bounced::integer, sent::integer FROM campaign_sums")
    assert count == {"bounced": 1, "sent": len(REASONS)}


def report(link: str, kind: str = "abuse", sender: str = "x@a.example") -> bytes:
    """A report of a provider, with the mail that it is about in quoted-printable."""
    quoted = link.replace("=", "=3D")
    about = (
        f"List-Unsubscribe: <{link[:40]}\r\n {link[40:]}>\r\n\r\n{quoted[:60]}=\r\n{quoted[60:]}"
    )
    return (
        "Content-Type: multipart/report; report-type=feedback-report; boundary=x\r\n\r\n"
        "--x\r\nContent-Type: message/feedback-report\r\n\r\n"
        f"Feedback-Type: {kind}\r\nOriginal-Mail-From: <{sender}>\r\n\r\n"
        f"--x\r\nContent-Type: message/rfc822\r\n\r\n{about}\r\n--x--\r\n"
    ).encode()


def test_to_the_address_of_a_feedback_loop(
    system: System, campaign: Campaign, tmp_path: Path
) -> None:
    """By a link or a VERP address in the report; all mail goes on to the mailbox."""
    hop, url = system.hop(), "https://mail.example"
    settings = sections(tmp_path, url)
    settings["suppressions"] = {"complaints": ["FBL@c.example"]}
    system.queued(shaping=configuration(tmp_path, hop), **settings)
    campaign.add("joe@b.example", "ann@b.example", "eve@b.example")
    campaign.start()
    verp = {kept.recipients[0]: kept.sender for kept in hop.wait_kept(3)}
    good = f"{url}/unsubscribe?token={token(campaign.id, 1)}"
    verp_of_ann = verp["ann@b.example"]
    mails = [
        b"Subject: hello\r\n\r\n" + good.encode() + b"\r\n",
        report(good, "not-spam"),
        report(good[:-3] + "xyz"),
        report("https://a.example", sender=verp_of_ann.replace("@", "0@")),
        report(good),
        report(good) + b"x\r\n" * 300_000,
        report("https://a.example", sender=verp_of_ann),
    ]
    for count, content in enumerate(mails, 4):
        system.enqueue("fbl@c.example", content=content, sender="")
        hop.wait_kept(count)
        if count < 8:
            assert campaign.reasons() == []
    system.wait_queue(lambda rows: not rows)
    assert campaign.reasons() == ["ann@b.example complained", "joe@b.example complained"]
    assert [kept.content for kept in hop.kept[3:]] == [b"Received: by test\r\n" + m for m in mails]
