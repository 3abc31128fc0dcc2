"""Alert rules and the dashboard: they fire for their faults, and name series that there are."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from pgmta.metrics.series import Series
from pgmta_features.events.consumers.function_caller import SERIES as FUNCTION_SERIES
from pgmta_features.events.sequencer import SERIES as EVENT_SERIES
from pgmta_features.lifecycle.backlog import SERIES as BACKLOG_SERIES
from pgmta_features.lifecycle.collectors import SERIES as COLLECTOR_SERIES
from pgmta_features.metrics.queued_series import QUEUED_SERIES, WEB_SERIES
from pgmta_features.webhooks.poster import SERIES as WEBHOOK_SERIES
from pgmta_features.webhooks.poster import SUSPENDED
from smtpd.server.smtpd_series import SERIES

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "etc" / "prometheus"
FEATURE_SERIES = (
    *COLLECTOR_SERIES, *BACKLOG_SERIES, *EVENT_SERIES, *FUNCTION_SERIES, *WEBHOOK_SERIES,
    SUSPENDED,
)  # fmt: skip
ALL = {series.name: series for series in (*SERIES, *QUEUED_SERIES, *WEB_SERIES, *FEATURE_SERIES)}
_NAME = re.compile(r"\b((?:pgmta|process|node)_[a-z_]+|up)\b")
_LABELS = re.compile(r"([a-z_]+)\s*(?:=~|!~|!=|=)\s*\"")


def series_of(name: str) -> Series | None:
    """Return the series of a sample's name."""
    if name in ALL:
        return ALL[name]
    base = re.sub(r"_(bucket|sum|count)$", "", name)
    found = ALL.get(base)
    return found if found and found.kind == "histogram" else None


def expressions() -> list[str]:
    """Every expression of the dashboard and of the alert rules."""
    dashboard = json.loads((FOLDER / "dashboard.json").read_text(encoding="utf-8"))
    found = [t["expr"] for panel in dashboard["panels"] for t in panel.get("targets", ())]
    rules = yaml.safe_load((FOLDER / "alerts.yaml").read_text(encoding="utf-8"))
    return [*found, *(rule["expr"] for group in rules["groups"] for rule in group["rules"])]


@pytest.mark.parametrize("expression", expressions())
def test_expressions_name_series_and_labels_that_there_are(expression: str) -> None:
    own = [name for name in _NAME.findall(expression) if not name.startswith("node_")]
    own = [name for name in own if name != "up"]
    for name in own:
        assert series_of(name), name
    if own:
        known = {label for name in own if (found := series_of(name)) for label in found.labels}
        known |= {"le", "job", "instance"}
        grouped = re.findall(r"\b(?:by|without|on) \(([^)]*)\)", expression)
        used = {word.strip() for group in grouped for word in group.split(",")}
        assert used | set(_LABELS.findall(expression)) <= known


@pytest.mark.needs("prometheus")
@pytest.mark.parametrize(
    "command", [["check", "rules", "alerts.yaml"], ["test", "rules", "alerts_test.yaml"],
                ["check", "config", "prometheus.yaml"]], ids=" ".join,
)  # fmt: skip
def test_promtool_has_no_complaint(command: list[str]) -> None:
    done = subprocess.run(["promtool", *command], cwd=FOLDER, capture_output=True, text=True,
                          check=False)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_has_a_test() -> None:
    rules = yaml.safe_load((FOLDER / "alerts.yaml").read_text(encoding="utf-8"))
    tests = (FOLDER / "alerts_test.yaml").read_text(encoding="utf-8")
    names = [rule["alert"] for group in rules["groups"] for rule in group["rules"]]
    assert [name for name in names if f'alertname="{name}"' not in tests] == []
