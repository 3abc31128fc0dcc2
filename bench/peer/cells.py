"""The loads: a cell is one kind of load, or none, and the sets are lists of cells."""

from dataclasses import dataclass, replace
from pathlib import Path

from bench.phases import Options


@dataclass(frozen=True)
class Cell:
    """One kind of load: none, intake only, or end to end, and how the mail comes."""

    scenario: str  # "idle", "intake" or "e2e"
    count: int  # number of messages; for "idle" the seconds
    sessions: int = 20
    reuse: bool = True
    recipients: int = 1
    size: int = 4096
    rate: float = 0.0
    tls: str = ""  # delivery over STARTTLS: "kept" connections, or "each" message on a new one
    refused: bool = False  # the sink refuses all recipients; DSNs are counted
    sign: str = ""  # signatures of DKIM: "rsa" with 2,048 bits, or "ed25519"
    front: str = ""  # how the mail comes: "tls" (STARTTLS)

    @property
    def label(self) -> str:
        """Return a short name that distinguishes cells."""
        if self.idle:
            return self.scenario
        parts = [self.scenario, f"{self.sessions} {'kept' if self.reuse else 'one a mail'}"]
        if self.recipients > 1:
            parts.append(f"{self.recipients} recipients")
        if self.size != 4096:
            parts.append(f"{self.size / 1000:g} KB")
        if self.rate:
            parts.append(f"{self.rate:g}/s")
        if self.front:
            parts.append("over TLS")
        if self.tls:
            parts.append("STARTTLS kept" if self.tls == "kept" else "STARTTLS per message")
        if self.refused:
            parts.append("all refused, DSNs")
        if self.sign:
            parts.append({"rsa": "signed by RSA 2,048", "ed25519": "signed by Ed25519"}[self.sign])
        return ", ".join(parts)

    @property
    def idle(self) -> bool:
        """Whether there is no mail."""
        return self.scenario == "idle"

    @property
    def end_to_end(self) -> bool:
        """Whether the mail is delivered."""
        return self.scenario == "e2e"

    @property
    def plain(self) -> bool:
        """Whether smtp-source and smtp-sink of Postfix can make and take this mail."""
        return not (self.rate or self.tls or self.front or self.refused or self.sign)

    def options(self, stall: float, processes: int | None, commands: Path) -> Options:
        """Return the options of a phase of this cell."""
        return Options(
            messages=self.count,
            sessions=self.sessions,
            size=self.size,
            recipients=self.recipients,
            domains=1,
            reuse=self.reuse,
            processes=processes,
            workers=1,
            backlog=0,
            rate=self.rate,
            stall=stall,
            keep=False,
            commands=commands,
            starttls=bool(self.tls),
            refuse=self.refused,
            secure=bool(self.front),
        )


QUICK_CELLS = (
    Cell("intake", 2000, sessions=50),
    Cell("e2e", 2500),
    Cell("e2e", 1500, reuse=False),
    Cell("e2e", 150, rate=10),
)
QUIET_CELLS = (Cell("idle", 120), Cell("e2e", 300, rate=10))
FULL_CELLS = (
    Cell("intake", 8000, sessions=50),
    Cell("intake", 5000, reuse=False),
    Cell("e2e", 8000),
    Cell("e2e", 5000, reuse=False),
    Cell("e2e", 8000, sessions=100),
    Cell("e2e", 5000, sessions=100, reuse=False),
    Cell("e2e", 3000, recipients=5),
    Cell("e2e", 2000, size=100_000),
    Cell("e2e", 100, sessions=10, size=10_000_000),
    *QUIET_CELLS,
    Cell("e2e", 5000, rate=500),
)
TLS_CELLS = (Cell("e2e", 2500), Cell("e2e", 2500, tls="kept"), Cell("e2e", 1200, tls="each"))
FRONT_CELLS = tuple(
    Cell(scenario, count, front=front, reuse=reuse)
    for scenario in ("intake", "e2e")
    for count, front, reuse in (
        (8000, "", True),
        (8000, "tls", True),
        (2000, "tls", False),
    )
)
BOUNCED_CELLS = (Cell("e2e", 5000, refused=True), Cell("e2e", 2000, recipients=5, refused=True))
SIGNED_CELLS = (Cell("e2e", 5000), Cell("e2e", 5000, sign="rsa"), Cell("e2e", 5000, sign="ed25519"))
SETS = {
    "quick": QUICK_CELLS,
    "full": FULL_CELLS,
    "quiet": QUIET_CELLS,
    "tls": TLS_CELLS,
    "front": FRONT_CELLS,
    "bounced": BOUNCED_CELLS,
    "signed": SIGNED_CELLS,
}


def scaled(cells: tuple[Cell, ...], factor: float) -> list[Cell]:
    """Return the cells with that many times the messages."""
    return [replace(cell, count=max(1, round(cell.count * factor))) for cell in cells]
