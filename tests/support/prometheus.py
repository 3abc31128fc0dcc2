"""A Prometheus with the alert rules of this project, whose minutes are seconds."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any, Self

import yaml

from tests.support.waiting import PATIENCE, free_port, until

FOLDER = Path(__file__).resolve().parents[2] / "etc" / "prometheus"
_LENGTH = re.compile(r"(?<=[\[ ])(\d+)([mh])\b")
_SECONDS = {"m": 1, "h": 60}


def hurried(text: str) -> str:
    """Return an expression or a period with seconds for its minutes."""
    return _LENGTH.sub(lambda found: f"{int(found[1]) * _SECONDS[found[2]]}s", f" {text}").strip()


class Prometheus:
    """Scrapes the pages of daemons by job, and judges the rules, once per second."""

    def __init__(self, folder: Path, jobs: dict[str, int], **ages: str) -> None:
        """`ages` replace limits of rules in seconds, which `hurried` does not change."""
        self.port = free_port()
        rules = yaml.safe_load((FOLDER / "alerts.yaml").read_text(encoding="utf-8"))
        for group in rules["groups"]:
            for rule in group["rules"]:
                rule["expr"] = hurried(ages.get(rule["alert"], rule["expr"]))
                rule["for"] = hurried(rule["for"])
        (folder / "alerts.yaml").write_text(yaml.safe_dump(rules), encoding="utf-8")
        often = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        scrapes = [
            {"job_name": job, "scrape_timeout": "1s",
             "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}
            for job, port in jobs.items()
        ]  # fmt: skip
        config = {"global": often, "rule_files": ["alerts.yaml"], "scrape_configs": scrapes}
        path = folder / "prometheus.yaml"
        path.write_text(yaml.safe_dump(config), encoding="utf-8")
        self._log = (folder / "prometheus.log").open("wb")
        self._process = subprocess.Popen(
            ["prometheus", f"--config.file={path}", f"--storage.tsdb.path={folder / 'series'}",
             f"--web.listen-address=127.0.0.1:{self.port}"],
            stdout=self._log, stderr=self._log,
        )  # fmt: skip

    def __enter__(self) -> Self:
        until(self._ready)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()

    def _ready(self) -> bool:
        try:
            return bool(self.query("count(up)"))
        except OSError:
            return False

    def _get(self, path: str) -> Any:
        place = f"http://127.0.0.1:{self.port}/api/v1/{path}"
        with urllib.request.urlopen(place, timeout=PATIENCE) as answer:
            return json.load(answer)["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the series that an expression has now."""
        words = urllib.parse.urlencode({"query": expression})
        found: list[dict[str, Any]] = self._get(f"query?{words}")["result"]
        return found

    def firing(self) -> set[str]:
        """Return the names of the alerts that fire."""
        found = self._get("alerts")["alerts"]
        return {each["labels"]["alertname"] for each in found if each["state"] == "firing"}
