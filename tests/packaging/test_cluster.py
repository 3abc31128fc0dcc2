"""The files of packaging/cluster: schemas of Kubernetes, and our own daemons."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from pgmta.config.loader import load
from queued.config.queued_config import whole_model
from smtpd.config.smtpd_config import SmtpdConfig
from tests.support.daemons import ROOT
from tests.support.packages import folder

FILES = ROOT / "packaging" / "cluster"
MANIFESTS = sorted((FILES / "kubernetes").glob("*.yaml"))


def objects() -> list[dict[str, Any]]:
    return [each for path in MANIFESTS for each in yaml.safe_load_all(path.read_text())]


@pytest.mark.needs("kubernetes-validate")
def test_kubernetes_takes_them() -> None:
    program = folder() / "kubernetes-validate" / "bin" / "kubernetes-validate"
    done = subprocess.run(
        [program, "--strict", *MANIFESTS], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_settings_are_those_of_our_daemons(tmp_path: Path) -> None:
    [settings] = [each["data"] for each in objects() if each["kind"] == "ConfigMap"]
    for name, text in settings.items():
        (tmp_path / name).write_text(text)
    load(tmp_path / "smtpd.yaml", SmtpdConfig)
    load(tmp_path / "queued.yaml", whole_model())
    load(FILES / "smtpd.yaml", SmtpdConfig)
    for name in ("queued.yaml", "operator.yaml"):
        load(FILES / name, whole_model())


def test_names_lead_somewhere() -> None:
    """What a pod reads is there, and each selector has the labels of a pod."""
    named = {(each["kind"], each["metadata"]["name"]): each for each in objects()}
    pods = [each["spec"]["template"] for each in objects() if "template" in each.get("spec", {})]
    for pod in pods:
        [container] = pod["spec"]["containers"]
        for variable in container["env"]:
            place = variable["valueFrom"]["secretKeyRef"]
            assert place["key"] in named["Secret", place["name"]]["stringData"]
        for volume in pod["spec"]["volumes"]:
            assert "emptyDir" in volume or ("ConfigMap", volume["configMap"]["name"]) in named
    labels = [pod["metadata"]["labels"] for pod in pods]
    for each in objects():
        spec = each.get("spec", {})
        selector = spec.get("selector") or spec.get("podSelector")
        if selector:
            assert selector.get("matchLabels", selector) in labels
