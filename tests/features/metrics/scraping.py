"""Scrapes of a daemon's page, as Prometheus reads it."""

from __future__ import annotations

import shutil
import subprocess
import urllib.error
import urllib.request
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from tests.support.waiting import PATIENCE


def get(port: int, path: str) -> tuple[int, str]:
    """Return code and text of a page."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@dataclass
class Scrape:
    """One page, and its samples by name and labels."""

    text: str
    samples: dict[tuple[str, frozenset[tuple[str, str]]], float]

    @classmethod
    def of(cls, port: int) -> Scrape:
        code, text = get(port, "/metrics")
        assert code == 200, text
        return cls.read(text)

    @classmethod
    def read(cls, text: str) -> Scrape:
        samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
        return cls(text, samples)

    def value(self, name: str, **labels: str) -> float:
        """Return a sample; 0 if there is none."""
        return self.samples.get((name, frozenset(labels.items())), 0.0)

    def total(self, name: str, **labels: str) -> float:
        """Return the sum of all samples with these labels."""
        wanted = set(labels.items())
        return sum(v for (n, has), v in self.samples.items() if n == name and wanted <= has)

    def names(self) -> set[str]:
        """Return the names of all samples."""
        return {name for name, _ in self.samples}


def lint(text: str) -> str:
    """Return what promtool says about a page; '' if nothing, or without promtool."""
    if not (promtool := shutil.which("promtool")):
        return ""
    done = subprocess.run([promtool, "check", "metrics"], input=text, text=True,
                          capture_output=True, check=False)  # fmt: skip
    return done.stdout + done.stderr
