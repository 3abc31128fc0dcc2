"""What the loss of a host would lose, in one sentence: of made-up facts, and of real servers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgmta.store.admin.examination import Examination, Question
from queued.cli.doctor.host_loss import Copies, StandbyState, judge
from tests.queued.cli.doctor.conftest import Doctor
from tests.support.standby import replicated
from tests.support.waiting import until

MB = 1 << 20


def standby(name: str, confirms: str, octets: int = 0, *, logical: bool = False) -> StandbyState:
    return StandbyState(name, confirms, octets, logical)


QUORUM = (standby("a", "quorum"), standby("b", "quorum"))
CASES: dict[str, tuple[Copies, str, str]] = {
    "embedded": (Copies(embedded=True), "ok", "lose the queue, unless a backup has it: PostgreSQL"),
    "alone": (Copies(), "ok", "lose the queue, unless a backup has it: no standby is connected"),
    "its standby is away": (Copies(absent=["s1"]), "warning", "the slot s1 waits for one"),
    "a subscription is no copy": (
        Copies(standbys=[standby("sub", "async", logical=True)]), "ok", "no standby is connected",
    ),
    "asynchronous": (
        Copies(standbys=[standby("far", "async", 90 * MB), standby("s1", "async", 12 * MB)]), "ok",
        "lose the commits of the last moments: they wait for no standby, and s1 is 12 MB behind",
    ),
    "any of two": (
        Copies("ANY 1 (a, b)", standbys=QUORUM), "ok",
        "lose nothing that was answered with 250: 1 of 2 standbys confirms each commit",
    ),
    "any of two, one is away": (
        Copies("any 1 (a, b)", standbys=QUORUM[:1]), "ok",
        "250: the standby a confirms each commit; without it no mail would be accepted",
    ),
    "two of two": (
        Copies("ANY 2 (a, b)", standbys=QUORUM), "ok",
        "2 of 2 standbys confirm each commit; without one of them no mail would be accepted",
    ),
    "the first of two": (
        Copies("a, b", standbys=[standby("a", "sync"), standby("b", "potential")]), "ok",
        "250: 1 of 2 standbys confirms each commit",
    ),
    "whoever comes": (
        Copies("*", standbys=[standby("walreceiver", "sync")]), "ok",
        "250: the standby walreceiver confirms each commit",
    ),
    "a subscription confirms": (
        Copies("*", standbys=[standby("sub", "sync", logical=True)]), "warning",
        "may lose mail: sub confirms commits, and is no copy",
    ),
    "the named one is away": (
        Copies('"s1"'), "error",
        "each commit waits for 1 more of synchronous_standby_names = '\"s1\"'; connected: none",
    ),
    "another one is connected": (
        Copies("2 (a, b, c)", standbys=[standby("a", "sync"), standby("z", "async")]), "error",
        "waits for 1 more of synchronous_standby_names = '2 (a, b, c)'; connected: a, z",
    ),
    "commits do not wait": (
        Copies("ANY 1 (a, b)", "local", QUORUM), "warning", "synchronous_commit is local",
    ),
    "not seen": (
        Copies("*", standbys=[StandbyState("", "")], blind="me"), "unknown", "does not see which",
    ),
    "one is lost, its slot is there": (
        Copies("ANY 1 (a)", standbys=QUORUM[:1], absent=["b"]), "warning",
        "because no other may confirm. A standby is missing: the slot b waits for one",
    ),
    "one is lost, its slot too": (
        Copies("ANY 1 (a)", standbys=QUORUM[:1], hosts=3), "warning",
        "A standby is missing: environment.database.uri names 3 hosts",
    ),
    "all are there": (
        Copies("ANY 1 (a, b)", standbys=QUORUM, hosts=3), "ok", "1 of 2 standbys confirms each",
    ),
    "all are lost": (
        Copies(hosts=3), "warning", "no standby is connected, and environment.database.uri names 3",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_sentence(name: str) -> None:
    copies, severity, words = CASES[name]
    found = judge(copies)
    assert (found.severity, words in found.finding) == (severity, True), found
    assert bool(found.remedy) == (severity != "ok")


@pytest.mark.slow
def test_of_real_servers(server: str, tmp_path: Path) -> None:
    with replicated(server) as pair:
        patient = Doctor(tmp_path, pair.uri)

        def said() -> tuple[str, str]:
            (found,) = patient.ask("--no-network")["loss of a host"]
            return found["severity"], found["finding"]

        assert said()[1].endswith(
            "lose nothing that was answered with 250: the standby walreceiver confirms each "
            "commit; without it no mail would be accepted, because no other may confirm"
        )
        pair.db.execute("ALTER SYSTEM RESET synchronous_standby_names")
        pair.db.execute("SELECT pg_reload_conf()")
        until(lambda: "the last moments: they wait for no standby" in said()[1])
        pair.db.execute("CREATE ROLE plain IN ROLE pgmta_operator")
        patient.uri += " options='-c role=plain'"
        patient.settings["environment"]["database"]["uri"] = patient.uri
        assert said()[0] == "unknown"
        either = make_conninfo(pair.uri, host=f"{pair.primary.host},{pair.standby.host}")
        patient.settings["environment"]["database"]["uri"] = either
        pair.standby.crash()
        until(
            lambda: said()[1].endswith(
                "no standby is connected, and environment.database.uri names 2 hosts"
            )
        )
        pair.db.execute("ALTER SYSTEM SET synchronous_standby_names = 'FIRST 1 (s1, s2)'")
        pair.db.execute("SELECT pg_reload_conf()")
        until(lambda: said()[0] == "error")
        assert "waits for 1 more of synchronous_standby_names = 'FIRST 1 (s1, s2)'" in said()[1]
        pair.standby.start()
        pair.primary.crash()
        found = patient.ask("--no-network")
        assert any("a failover is under way" in each["finding"] for each in found["durability"])
        assert found["loss of a host"][0]["severity"] == "unknown"
        assert not {"daemons", "workers"} & set(found)


def test_a_connection_that_is_lost_has_one_line(
    patient: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Examination.ask

    async def ask(self: Examination, name: Question, **values: Any) -> list[dict[str, Any]]:
        if name == "roles_async":  # in the middle of a check
            with psycopg.connect(patient.uri, autocommit=True) as other:
                other.execute("SELECT pg_terminate_backend(%s)", (self.backend,))
        return await real(self, name, **values)

    monkeypatch.setattr(Examination, "ask", ask)
    found = patient.ask("--no-network")
    [lost] = found["database"]
    assert (lost["severity"], "lost during the checks" in lost["finding"]) == ("error", True)
    assert "xmin horizon" not in found
