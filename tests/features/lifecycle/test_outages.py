"""An hour without collectors or next hop: what docs/programs/collectors.md says of outages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psycopg
import yaml
from click.testing import CliRunner, Result

from pgmta_features.lifecycle.account_checks import AccountChecks
from queued.cli.queuectl import main
from tests.features.lifecycle.test_collector import MAILS, held
from tests.features.lifecycle.tokens import add_accounts, collect, settings
from tests.features.metrics.scraping import Scrape
from tests.sql.test_roles import acting
from tests.support.nexthop import as_usual, at
from tests.support.operating import diagnosed
from tests.support.rows import column, fetch
from tests.support.system import System
from tests.support.waiting import free_port, until

AN_HOUR_LATER = """
UPDATE lifecycle.tokens SET created_at = created_at - 3600, expires_at = expires_at - 3600;
UPDATE pgmta.queue SET next_attempt = now(), metadata = metadata || jsonb_build_object('_deadline',
    to_char(now() AT TIME ZONE 'UTC' - interval '45 minutes', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'));
NOTIFY pgmta_queue
"""


def findings(database: str) -> list[str]:
    """What doctor says to an operator, with its remedies."""
    operator = acting(database, "pgmta_operator")
    found = diagnosed(operator, lambda examination: AccountChecks(examination).accounts())
    return [f"{each.finding} -> {each.remedy}" for each in found]


def again(folder: Path, database: str, *words: str) -> Result:
    file = folder / "operator.yaml"
    operator = acting(database, "pgmta_operator")
    file.write_text(yaml.safe_dump({"environment": {"database": {"uri": operator}}}))
    return CliRunner().invoke(main, ["lifecycle", "again", *words, "-c", str(file)])


def test_what_expired_in_an_outage_is_mailed_again(
    accounts: psycopg.Connection, database: str, system: System, tmp_path: Path
) -> None:
    hop = system.hop(at("MAIL", "451 4.3.0 later"))
    config = settings(tmp_path, timeout=None, limit=500)
    daemon = system.queued(hop, **config)
    add_accounts(accounts, 3, "deferred")
    until(lambda: len(system.attempts()) >= 3)
    daemon.stop()
    add_accounts(accounts, 2, "waiting")
    accounts.execute("UPDATE tokens SET created_at = created_at - 60")
    (found,) = findings(database)
    assert "2 tokens of activation have no mail yet, the oldest for 6" in found
    assert "no collector takes them -> a queued that runs, with a collector for activation" in found

    accounts.execute(AN_HOUR_LATER)
    daemon.start()
    until(lambda: fetch(accounts, "SELECT count(*) FROM waiting_tokens") == (0,))
    until(lambda: fetch(accounts, MAILS) == (0,))
    classes = "SELECT DISTINCT class FROM pgmta.attempts WHERE event = 'failed'"
    assert column(accounts, classes) == ["expired"]
    (found,) = findings(database)
    assert "5 tokens of activation expired within a day before their mail left" in found
    assert "`queuectl lifecycle again --action activation`" in found

    accounts.execute("UPDATE accounts SET status = 'active' WHERE login = 'deferred1'")
    result = again(tmp_path, database, "--action", "activatoin")
    assert result.exit_code == 2
    assert '--action: there is no action "activatoin". Did you mean activation?' in result.stderr
    hop.script = as_usual
    result = again(tmp_path, database, "--json")
    assert json.loads(result.stdout) == {"tokens": 4}, result.output
    hop.wait_kept(4)
    names = {kept.recipients[0].partition("@")[0] for kept in hop.kept}
    assert names == {"deferred2", "deferred3", "waiting1", "waiting2"}
    assert again(tmp_path, database).stdout == "0 new tokens wait for their mail\n"
    assert findings(database) == []


def test_mail_that_was_refused_for_good_is_not_late(
    accounts: psycopg.Connection, database: str, system: System, tmp_path: Path
) -> None:
    hop = system.hop(at("RCPT", "550 5.1.1 nobody"))
    system.queued(hop, **settings(tmp_path, timeout=None))
    add_accounts(accounts, 1)
    until(lambda: system.events("u1@b.example") == ["failed"])
    accounts.execute(AN_HOUR_LATER)
    assert findings(database) == []
    assert again(tmp_path, database).stdout == "0 new tokens wait for their mail\n"


def test_a_collector_of_other_actions_takes_nothing(
    accounts: psycopg.Connection, database: str, system: System, tmp_path: Path
) -> None:
    port = free_port()
    config: dict[str, Any] = settings(tmp_path, actions=["password_recovery"], timeout=None)
    daemon = system.queued(**config, **held(system), metrics={"listen": f"127.0.0.1:{port}"})
    daemon.wait_log("connected")
    add_accounts(accounts, 2)
    accounts.execute("UPDATE tokens SET created_at = created_at - 60")
    add_accounts(accounts, 1, "lost", status="active")
    accounts.execute("SELECT recover('lost1')")
    until(lambda: column(accounts, "SELECT recipient FROM pgmta.queue") == ["lost1@b.example"])
    (found,) = findings(database)
    assert "2 tokens of activation have no mail yet, the oldest for 6" in found
    assert "no collector takes them" in found
    assert column(accounts, "SELECT actions FROM live_collectors") == [["password_recovery"]]
    until(lambda: Scrape.of(port).value("pgmta_queued_tokens_waiting") == 2, timeout=30)
    assert collect(accounts)[0] == 2
    daemon.stop()
    assert column(accounts, "SELECT actions FROM live_collectors") == []
