"""The command bench/campaign: the rate of a campaign, its stop, its books, and mail beside it."""

import statistics
import time
from bisect import bisect_left
from collections.abc import Sequence

import click

from bench import cpu
from bench.campaign_line import DOMAINS, NAME, CampaignLine
from bench.campaign_sink import REFUSED
from bench.columns import aligned
from bench.options import EXIT, HELP, dump, failing, finish, hardware, opened, relay_options
from bench.progress import log
from bench.scheduling import Figure

ABOUT = f"""Measure a campaign without a rate: one queued with default settings, and one next hop.

A template of 4 KB with two words goes to --recipients of {DOMAINS} domains. Stretches of --seconds
alternate: the campaign alone, and beside single mail at --rate. "show" is its look at the database,
4 per second. Then the campaign is stopped, resumed to its end, and retried: the next hop
refused each {REFUSED}th recipient at first. The books are compared with the next hop after each of
these. {EXIT}a limit was missed."""
WARM = 5.0  # seconds before the first stretch
LEAST = 2500.0  # mails per second


def rate_in(arrived: Sequence[float], stretch: tuple[float, float]) -> float:
    """Return the mails per second of a stretch."""
    begin, end = stretch
    return (bisect_left(arrived, end) - bisect_left(arrived, begin)) / (end - begin)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which this share of them is."""
    return sorted(values)[int(len(values) * share)]


class Campaigning:
    """The measures, one after the other; `problems` are differences of the books."""

    def __init__(self, line: CampaignLine, seconds: float, pairs: int, rate: float) -> None:
        self._line, self._seconds, self._pairs, self._rate = line, seconds, pairs, rate
        self.figures: list[Figure] = []
        self.problems: list[str] = []

    def add(self, name: str, value: float, limit: float | None = None, least: bool = False) -> None:
        """Note a figure."""
        self.figures.append(Figure(name, value, limit, least))

    def run(self) -> None:
        """Measure all. Raises HelperError, DaemonError, psycopg.Error."""
        line = self._line
        line.ask("SELECT campaign_start(%s)", line.campaign)
        line.wait(WARM)
        self._stretches()
        self._stop()
        self._resume()
        self._retry()

    def _stretches(self) -> None:
        line, alone, beside = self._line, [], []
        used: dict[str, float] = {}
        with line.look():
            for turn in range(self._pairs):
                log(f"pair {turn + 1} of {self._pairs}")
                before = cpu.snapshot(line.groups)
                line.wait(self._seconds)
                after = cpu.snapshot(line.groups)
                alone.append((before.at, after.at))
                for name, seconds in after.groups.items():
                    used[name] = used.get(name, 0.0) + seconds - before.groups[name]
                with line.submit_singles(self._rate):
                    began = time.monotonic()
                    line.wait(self._seconds)
                    beside.append((began, time.monotonic()))
            state = line.table.state("", NAME)
        line.wait(1.0)
        report = line.report()
        if not state.unsent:
            self.problems.append("the campaign ended before the stretches: more --recipients")
        arrived = report["arrived"]
        rates = [rate_in(arrived, each) for each in alone]
        shares = [rate_in(arrived, b) / rate for b, rate in zip(beside, rates, strict=True)]
        mails = sum(rate * self._seconds for rate in rates)
        self.add("octets of a mail", report["octets"])
        self.add("connections", report["peak"])
        self.add("campaign alone, mails/s, lowest", min(rates))
        self.add("campaign alone, mails/s, median", statistics.median(rates), LEAST, least=True)
        self.add("campaign alone, mails/s, highest", max(rates))
        for name, seconds in used.items():
            self.add(f"CPU µs/mail, {name}", seconds / mails * 1e6)
        self.add("show, ms p50", statistics.median(line.shows) * 1e3)
        self.add("show, ms longest", max(line.shows) * 1e3, 100.0)
        self.add("rows of the campaign due, most", max(line.due), 300)
        singles = [came - sent for came, sent in zip(report["singles"], line.sent, strict=False)]
        if lost := sum(not came for came in report["singles"][: len(line.sent)]):
            self.problems.append(f"{lost} of {len(singles)} single mails did not arrive")
        self.add("single mails", len(singles))
        self.add("commit of a single mail to the next hop, ms p50", percentile(singles, 0.5) * 1e3)
        self.add("likewise, ms p99", percentile(singles, 0.99) * 1e3, 500.0)
        self.add("likewise, ms longest", max(singles) * 1e3)
        self.add("campaign's share beside them, lowest", min(shares))
        self.add("campaign's share beside them, median", statistics.median(shares), 0.9, least=True)

    def _stop(self) -> None:
        line = self._line
        log("stop")
        began = time.monotonic()
        line.ask("SELECT campaign_stop(%s)", line.campaign)
        stopped = time.monotonic()
        done = line.wait_done()
        line.wait(1.0)
        begun = line.report()["begun"]
        self.add("stop, ms", (stopped - began) * 1e3, 1000.0)
        self.add("last MAIL after the commit of stop, ms", (max(begun) - stopped) * 1e3, 1000.0)
        self.add("stop to LOGGED, s", done - began, 5.0)
        self._compare("after the stop")

    def _resume(self) -> None:
        line = self._line
        line.ask("SELECT campaign_resume(%s)", line.campaign)
        log("the rest")
        done = line.wait_done()
        report = line.report()
        self.add("last mail to LOGGED with totals, s", done - report["arrived"][-1], 5.0)
        self._compare("after the rest", refused=1)

    def _retry(self) -> None:
        line = self._line
        log("retry")
        line.sink.tell("take")
        line.sink.wait("take")
        line.ask("SELECT campaign_retry(%s)", line.campaign)
        done = line.wait_done()
        report = line.report()
        self.add("retry, last mail to LOGGED, s", done - report["arrived"][-1], 5.0)
        self._compare("after the retry", refused=0)

    def _compare(self, when: str, refused: int | None = None) -> None:
        """Compare the books with the sink; `refused` are the failures that each of these has."""
        line, report = self._line, self._line.report()
        copies, times = report["copies"], report["refused"]
        state = line.table.state("", NAME)
        sent = line.ask("SELECT count(*) FROM campaign_recipients WHERE state = 'sent'")
        wrong = {
            "twice": sum(each > 1 for each in copies),
            "refused twice": sum(each > 1 for each in times),
            "not in the books": sum(copies) + line.done - state.sent,
            "not in the counts": sent - state.sent,
            "queued": state.queued,
            "unknown": state.unknown,
        }
        if refused is not None:
            every = line.recipients // REFUSED - line.done // REFUSED
            wrong["unsent"] = state.unsent
            wrong["failed"] = state.errored - refused * every
        self.problems += report["faults"]
        self.problems += [f"{when}: {number} {what}" for what, number in wrong.items() if number]


@relay_options("uri")
@click.command(context_settings=HELP, help=ABOUT)
@click.option("--recipients", default=1_000_000, type=click.IntRange(1000), help="Recipients.")
@click.option("--done", default=0, type=click.IntRange(0), help="Of these, sent before.")
@click.option("--seconds", default=20.0, type=click.FloatRange(1), help="Of a stretch.")
@click.option("--pairs", default=5, type=click.IntRange(1), help="Pairs of stretches.")
@click.option("--rate", default=10.0, type=click.FloatRange(0.1), help="Single mails per second.")
@click.option("--limits/--no-limits", default=True, help="Whether a figure can miss its limit.")
@click.option("--json", "json_", is_flag=True, help="Print JSON.")
def main(
    recipients: int,
    done: int,
    seconds: float,
    pairs: int,
    rate: float,
    limits: bool,
    json_: bool,
    uri: str | None,
) -> None:
    """Read the options, measure, show."""
    with failing():
        directory, server, about = opened(
            uri, what=f"{recipients} recipients, {done} done; {hardware()}; "
        )
        singles = int(pairs * (seconds + 1) * rate) + 10
        with CampaignLine(server, directory, recipients, done, singles) as line:
            measures = Campaigning(line, seconds, pairs, rate)
            measures.run()
            for note in line.notes:
                log(note)
    figures = measures.figures
    if json_:
        click.echo(dump({"about": about, "figures": [vars(one) for one in figures]}))
    else:
        click.echo(f"{about}\n\n{aligned([one.row() for one in figures])}\n")
    misses = [one.missed() for one in figures]
    finish(measures.problems, [miss for miss in misses if miss] if limits else [])


if __name__ == "__main__":
    main()
