"""A database with the schema lifecycle, templates and keys, and queued with collectors on it."""

import json
import time
from pathlib import Path
from typing import Any

from bench.corpus import Plan
from bench.daemons import DaemonError
from bench.line import Line
from pgmta.compose.template import TemplateSource, compile_template
from pgmta.compose.token import KeyRing, Purpose, TokenKey
from pgmta.store.changes.templates import NamedTemplate, TemplateTable
from pgmta.store.lifecycle.installation import install

KEYS = {purpose: (b"%d" % n) * 32 for n, purpose in enumerate(Purpose)}
RINGS = {purpose: KeyRing(purpose, [TokenKey("k1", key)]) for purpose, key in KEYS.items()}
URL = "https://mail.bench.test"
_BODIES = {
    "activation": "Hello {{login}}\n\n{{link}}\n",
    "recovery": "Hello {{login}}\n\n{{link}}\n\ncode {{code}}\n",
}
ACTIONS = {
    "activation": {"template": "activation", "priority": 4, "key": "k1", "url": f"{URL}/activate"},
    "password_recovery": {
        "template": "recovery", "priority": 1, "key": "k1", "url": f"{URL}/recover",
    },
}  # fmt: skip
ADD = """
INSERT INTO lifecycle.accounts (email, login, status)
SELECT {0} || n || '@b.example', {0} || n, {1} FROM generate_series(1, {2}) AS n
"""
NONE: list[dict[str, Any]] = [{"name": "none", "where": "false"}]
"""Workers that deliver nothing."""


class AccountLine(Line):
    """The line with the schema lifecycle. `tenant` gets the mail of its collectors."""

    tenant = ""

    def prepare(self) -> None:
        """Install the schema and store the templates and keys."""
        install(self.uri)
        store = TemplateTable(self.uri, "bench")
        named = []
        for name, body in _BODIES.items():
            source = TemplateSource(
                sender="shop@a.example", from_="Shop <shop@a.example>",
                subject="Hello {{login}}", body=body,
            )  # fmt: skip
            named.append(NamedTemplate("", name, source, compile_template(source)))
        store.put(named)
        store.close()
        for purpose, key in KEYS.items():
            file = self._key(purpose)
            file.touch(0o600)
            file.write_text(key.hex())

    def _key(self, purpose: Purpose) -> Path:
        return self.directory / f"{purpose}.key"

    def settings(self, **collector: Any) -> dict[str, Any]:
        """Return settings of queued with a collector."""
        return {
            "tokens": {
                str(purpose): [{"id": "k1", "file": str(self._key(purpose))}] for purpose in KEYS
            },
            "collectors": [{
                "name": "bench", "url": URL, "tenant": self.tenant,
                "activation": {"template": "activation"}, "recovery": {"template": "recovery"},
                **collector,
            }],
        }  # fmt: skip

    def collectors(self, number: int, **collector: Any) -> list[int]:
        """Start that many processes that collect and deliver nothing; return their ids."""
        settings = self.settings(**collector) | {"workers": NONE}
        return self.product.start_queued(number, 1, settings)

    def add(self, name: str, number: int, status: str = "provisioned") -> None:
        """Insert accounts NAME1, NAME2, … in one statement."""
        self.control.execute(ADD.format(f"'{name}'", f"'{status}'", number).encode())

    def ask(self, query: str, *values: object) -> Any:
        """Return the first value of the first row."""
        row = self.control.execute(query.encode(), values).fetchone()
        return row[0] if row else None

    def wait_taken(self, number: int, seconds: float) -> None:
        """Wait until batches have had that many tokens. Raises DaemonError."""
        end = time.monotonic() + seconds
        while int(self.ask("SELECT coalesce(sum(taken), 0) FROM lifecycle.collections")) < number:
            self.product.check()
            if time.monotonic() > end:
                raise DaemonError(f"{number} tokens are not collected within {seconds:g} s")
            time.sleep(0.1)

    def batches(self) -> list[tuple[float, int]]:
        """Return the end and the number of tokens of each batch, by the clock of the database."""
        return [
            (float(at), taken)
            for at, taken in self.control.execute(
                "SELECT extract(epoch FROM ended_at), taken FROM lifecycle.collections"
                " WHERE taken > 0 ORDER BY ended_at"
            )
        ]

    def explain(self, query: str, *values: object) -> dict[str, Any]:
        """Return the plan of a statement that runs."""
        found = self.ask(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {query}", *values)
        plan: dict[str, Any] = found[0]["Plan"]
        return plan


def options() -> str:
    """Return the options of lifecycle.collect()."""
    return json.dumps({"actions": ACTIONS, "budget": None})


def plan(name: str) -> Plan:
    """Return a plan of one small message, which nothing sends."""
    return Plan(name, 1, 64, 1, 1)
