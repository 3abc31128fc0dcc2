"""Programs that run with the SDK of OpenTelemetry: each process writes its spans into a file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.daemons import ROOT
from tests.support.waiting import PATIENCE

_CUSTOM = """
import os, sys
from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased, Sampler

class Broken(Sampler):
    def should_sample(self, *arguments, **named):
        raise RuntimeError("broken sampler")
    def get_description(self):
        return "broken"

program = next((name for name in ("smtpd", "queued") if name in sys.orig_argv), "program")
out = open(f"{os.environ['SPANS']}/{os.getpid()}.jsonl", "a", buffering=1)
exporter = ConsoleSpanExporter(out=out, formatter=lambda span: span.to_json(indent=None) + "\\n")
provider = TracerProvider(
    sampler=Broken() if os.environ.get("BROKEN") else ParentBased(ALWAYS_ON),
    resource=Resource({"service.name": program}),
)
# nothing is written before the end of the process
provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=3_600_000))
trace.set_tracer_provider(provider)
"""


@dataclass(frozen=True)
class SpanRecord:
    """A span as its exporter has written it."""

    name: str
    program: str
    pid: str
    trace: str
    id: str
    parent: str
    """The id of its parent, '' without one."""
    links: frozenset[tuple[str, str]]
    """Trace and id of each."""
    kind: str
    failed: bool
    values: dict[str, Any]

    @property
    def context(self) -> tuple[str, str]:
        """Trace and id."""
        return self.trace, self.id


class SpanLog:
    """A folder with a `sitecustomize.py` that sets the SDK up, and with the spans."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(_CUSTOM)
        self._folder = folder
        self.environment = {
            "PYTHONPATH": os.pathsep.join((str(folder), str(ROOT))),
            "SPANS": str(folder),
        }
        """Variables of a process that writes its spans."""

    def run(self, program: str, *arguments: str) -> str:
        """Run a Python program to its end; return what it prints."""
        environment = os.environ | self.environment
        command = [sys.executable, "-c", program, *arguments]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=PATIENCE
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    @property
    def text(self) -> str:
        """All that the exporters have written."""
        return "".join(path.read_text() for path in sorted(self._folder.glob("*.jsonl")))

    def spans(self, name: str = "") -> list[SpanRecord]:
        """The spans, or those of one name, of processes that have ended."""
        return [span for span in self._read() if not name or span.name == name]

    def _read(self) -> Iterator[SpanRecord]:
        for path in sorted(self._folder.glob("*.jsonl")):
            for line in path.read_text().splitlines():
                span = json.loads(line)
                yield SpanRecord(
                    span["name"],
                    span["resource"]["attributes"]["service.name"],
                    path.stem,
                    span["context"]["trace_id"],
                    span["context"]["span_id"],
                    span["parent_id"] or "",
                    frozenset(
                        (link["context"]["trace_id"], link["context"]["span_id"])
                        for link in span["links"]
                    ),
                    span["kind"].partition(".")[2],
                    span["status"]["status_code"] == "ERROR",
                    span["attributes"],
                )
