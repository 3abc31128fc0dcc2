"""A flood of forged mail beside normal mail: DSNs stop at the limit, and the rest is deleted."""

import json
import time
from pathlib import Path
from typing import Any

from bench.daemons import HOST, Product, merged
from bench.database import Server
from bench.hostile_forged import DOMAINS, FLOOD, MESSAGES, SMTPD, VICTIMS, forged_sender
from bench.hostile_run import Run, Settings
from bench.progress import log

RATE = 800.0  # forged messages per second
LONGER = 4.2  # times a window without an attack that the flood lasts, at most
SURPLUS = "bounce limit*"  # begins the reason of the rows that are held beyond the limit
LIMITS = {"sender": 100, "all": 10_000}  # those of queued.yaml
SETTLED = 120.0  # seconds after the last forged message


class FloodRun(Run):
    """The run of forged-senders."""

    def __init__(self, attack: str, settings: Settings, directory: Path, server: Server) -> None:
        super().__init__(attack, settings, directory, server)
        self.hop = True
        self.forged = min(MESSAGES, int(RATE * settings.seconds * LONGER))
        self.lasts = self.forged / RATE  # seconds
        self.sent: dict[str, Any] | None = None

    def _start_hop(self, attack: dict[str, Any]) -> dict[str, Any]:
        attack |= {"messages": self.forged, "seconds": self.lasts}
        self.attackers = self.helper("hostile_forged", group="attackers", **attack)
        port = self.attackers.wait("ready")["port"]
        hop = f"{HOST}:{port}"
        return {"routes": {FLOOD: hop, VICTIMS: hop}, "bounces": {"limits": LIMITS}}

    def _start_smtpd(self, product: Product) -> tuple[int, int]:
        smtpd = merged(SMTPD, self.settings.smtpd)
        smtpd["relay"]["domains"] = DOMAINS
        return product.start_smtpd(self.settings.processes, smtpd, {"bounces": "anybody"})

    def _length(self, attack: str | None) -> float:
        return self.lasts if attack else super()._length(attack)

    def _begin(self) -> None:
        self.attackers.tell(f"go:{self.port}")

    def _feed(self) -> None:
        """Do nothing: the flood comes by SMTP, at its own rate."""

    def _recover(self, product: Product, since: float) -> None:
        """Wait until all forged mail has come, and each message is notified of or on hold."""
        self.sent = self.attackers.wait("sent", self.settings.patience + SETTLED)
        log(f"{self.sent['accepted']} forged messages sent in {self.sent['seconds']:.1f} s")
        took = self.sent["seconds"] / self.lasts
        if took > 1.1:
            self.outcome.notes.append(f"the flood took {took:.1f} times its window")
        end = time.monotonic() + SETTLED
        while (left := self._count("status <> 'HOLD' AND domain = ANY(%s)")) > 0:
            if time.monotonic() > end:
                self.outcome.problems.append(f"{left} forged messages are not settled")
                break
            product.check()
            time.sleep(0.25)
        self.outcome.figures["settled s"] = time.monotonic() - since
        log(f"settled {self.outcome.figures['settled s']:.1f} s after the window")
        super()._recover(product, time.monotonic())

    def _count(self, condition: str) -> int:
        query = f"SELECT count(*) FROM queue WHERE {condition}"
        row = self.database.execute(query.encode(), [[FLOOD, VICTIMS]]).fetchone()
        return int(row[0]) if row else 0

    def _hop(self, product: Product) -> None:
        """Check the DSNs, and find and delete the surplus by one command each."""
        assert self.sent
        self.attackers.tell("report")
        report = self.attackers.wait("report")
        figures = {"forged accepted": self.sent["accepted"], "forged DSNs": report["DSNs"]}
        notified = self._notified()
        to_one = notified.pop(forged_sender(1), 0)
        figures |= {
            "forged notified": to_one + sum(notified.values()),
            "forged notified one sender": to_one,
        }
        found, seconds = self._timed(
            product, "count", "--hold-reason", SURPLUS, "--by", "hold_reason"
        )
        surplus = sum(each["count"] for each in found)
        figures |= {"surplus": surplus, "surplus found s": seconds}
        done, seconds = self._timed(
            product, "delete", "--hold-reason", SURPLUS, "--reason", "forged mail", "--yes"
        )
        figures |= {"surplus deleted": done["changed"], "surplus deleted s": seconds}
        end = time.monotonic() + SETTLED
        while (left := self._count("domain = ANY(%s)")) and time.monotonic() < end:
            time.sleep(0.1)
        self.outcome.figures |= figures
        self._judge(figures, max([to_one, *notified.values()]), left, report)

    def _judge(self, figures: dict[str, Any], most: int, left: int, report: dict[str, Any]) -> None:
        wrong = {
            f"{left} forged messages are left": left,
            f"{report['doubled']} were notified of twice": report["doubled"],
            f"{most} DSNs to one sender": most > LIMITS["sender"],
            f"{figures['forged notified']} DSNs in all": figures["forged notified"] > LIMITS["all"],
            f"{figures['forged DSNs']} DSNs came": figures["forged DSNs"]
            != figures["forged notified"],
            "notified and surplus are not all": figures["forged notified"] + figures["surplus"]
            != figures["forged accepted"],
        }
        self.outcome.problems += [text for text, is_so in wrong.items() if is_so]
        self.outcome.notes += [
            f"{name}: {value if isinstance(value, int) else round(value, 2)}"
            for name, value in figures.items()
        ]
        if self.sent and self.sent["reasons"]:
            self.outcome.notes.append(f"forged mail refused: {self.sent['reasons']}")

    def _notified(self) -> dict[str, int]:
        """Return the number of recipients that each forged sender was notified of."""
        query = "SELECT sent_to, count(*) FROM reports WHERE report_id IS NOT NULL GROUP BY 1"
        return dict(self.database.execute(query).fetchall())

    def _timed(self, product: Product, *words: str) -> tuple[Any, float]:
        began = time.monotonic()
        said = product.queuectl(*words, "--json")
        return json.loads(said), time.monotonic() - began
