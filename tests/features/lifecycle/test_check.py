"""`queued check` compares collectors with the database."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import yaml
from click.testing import CliRunner, Result

from pgmta_features.lifecycle.installation import install
from queued.daemon.queued import main
from tests.features.lifecycle.tokens import put_templates, settings


def check(folder: Path, database: str, keys: tuple[str, ...] = (), **collector: Any) -> Result:
    sections = settings(folder, **collector)
    if keys:
        sections["tokens"] = {purpose: [purpose] for purpose in keys}
    sections["environment"] = {"database": {"uri": database}}
    file = folder / "queued.yaml"
    file.write_text(yaml.safe_dump(sections))
    return CliRunner().invoke(main, ["check", "-c", str(file)])


def test_what_a_collector_misses(db: psycopg.Connection, database: str, tmp_path: Path) -> None:
    result = check(tmp_path, database)
    assert result.exit_code == 2
    assert "has no schema lifecycle: run `queuectl lifecycle install`" in result.stderr
    install(database)
    result = check(tmp_path, database)
    assert result.exit_code == 2
    assert 'collectors[0]: action activation: there is no template "activation"' in result.stderr
    assert check(tmp_path, database, output="stdout").exit_code == 0
    put_templates(db)
    assert check(tmp_path, database).exit_code == 0
    for output in ("queue", "stdout"):
        result = check(tmp_path, database, actions=["activatoin"], output=output)
        assert 'collectors[0]: there is no action "activatoin"; Did you mean' in result.stderr
    db.execute("INSERT INTO lifecycle.actions (name, template) VALUES ('invitation', 'activation')")
    assert check(tmp_path, database).exit_code == 0
    result = check(tmp_path, database, ("activate", "recover"))
    assert "tokens.confirm has no key, which signs the links of invitation" in result.stderr
    assert check(tmp_path, database, ("activate",), actions=["activation"]).exit_code == 0
