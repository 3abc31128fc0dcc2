"""Checks of the PostgreSQL server: settings, roles, activity, tables and clock."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

from pgmta.command import age
from pgmta.features import SCHEMA, more_schemas
from pgmta.postgres import blockers
from pgmta.store.admin.examination import Examination
from queued.cli.doctor import horizon
from queued.cli.doctor.diagnosis import Check, Diagnosis, error, unknown, warning
from queued.cli.doctor.host_loss import Copies, StandbyState, judge

_MIN_VERSION = 150000  # as the parameter server_version_num has it
_MAX_CLOCK_ERROR_S = 2.0
_FULL_SHARE = 0.9  # of the connections
_OLD_TRANSACTIONS = 1_000_000_000  # of about 2 * 10^9 that there are
_KEPT_WAL_OCTETS = 1 << 30
_BLOCKING_S = 2.0  # a session that blocks others for longer is a finding
# shorter ones are usual; a standby reports every 10 s, and has no age in seconds
_HELD_S = 60.0
_HELD_TRANSACTIONS = 50_000
_NOTIFY_QUEUE_SHARE = 0.5  # of the queue of NOTIFY
_MIN_DEAD_ROWS = 200_000  # and more than three times the others

LOST_HOSTS = "`patronictl list`, and bring lost hosts back (docs/operate/cluster.md)"
"""The remedy if none of several hosts takes writes."""


class ServerChecks:
    """Checks over one connection; its URI names `hosts`. Each method raises psycopg.Error."""

    def __init__(self, examination: Examination, *, embedded: bool = False, hosts: int = 1) -> None:
        self._embedded = embedded
        self._hosts = hosts
        self._ask = examination.ask
        self._examination = examination

    def all(self) -> dict[str, Check]:
        """Return the checks by name."""
        return {
            "version": self.version,
            "durability": self.durability,
            "roles": self.roles,
            "autovacuum": self.autovacuum,
            "connections": self.connections,
            "locks": self.locks,
            "xmin horizon": self.horizon,
            "notifications": self.notifications,
            "replication slots": self.slots,
            "loss of a host": self.host_loss,
            "publications": self.publications,
            "bloat": self.bloat,
            "transaction age": self.transaction_age,
            "indexes": self.indexes,
            "triggers": self.triggers,
            "clock": self.clock,
            "days": self.days,
            "collation": self.collation,
        }

    async def _setting(self, name: str) -> str:
        (found,) = (row["setting"] for row in await self._ask("settings") if row["name"] == name)
        return str(found)

    async def version(self) -> AsyncIterator[Diagnosis]:
        """Look at the version."""
        if self._examination.version < _MIN_VERSION:
            number = self._examination.version // 10_000
            yield error("version", f"PostgreSQL {number} is too old", "upgrade to 15 or newer")

    async def durability(self) -> AsyncIterator[Diagnosis]:
        """Look at the settings that decide whether a committed message survives a crash."""
        settings = {row["name"]: row["setting"] for row in await self._ask("settings")}
        for name in ("fsync", "full_page_writes"):
            if settings[name] != "on":
                yield error(
                    "durability",
                    f"{name} is {settings[name]}: a crash of the host loses or spoils mail",
                    f"ALTER SYSTEM SET {name} = on; SELECT pg_reload_conf();",
                )
        if settings["synchronous_commit"] in ("off", "local"):
            yield error(
                "durability",
                "synchronous_commit does not wait for the disk: a crash loses accepted mail",
                "ALTER SYSTEM RESET synchronous_commit; SELECT pg_reload_conf();",
            )
        for row in await self._ask("roles_async"):
            yield error(
                "durability",
                f"the role {row['role']} has a synchronous_commit that loses mail in a crash",
                f"ALTER ROLE {row['role']} RESET synchronous_commit;",
            )
        if settings["in_hot_standby"] == "on" and self._hosts > 1:
            yield error(
                "durability",
                "no host takes writes: a failover is under way, or too many hosts are lost",
                LOST_HOSTS,
            )
        elif settings["transaction_read_only"] == "on":
            yield error(
                "durability",
                "the server takes no writes: a standby, or default_transaction_read_only is on",
                "name the primary in environment.database.uri, or reset the setting",
            )

    async def roles(self) -> AsyncIterator[Diagnosis]:
        """Look for roles that a migration could not make, and for rights that they have lost."""
        rows = await self._ask("missing_rights", schema=SCHEMA)
        if missing := [row["role"] for row in rows if not row["privilege"]]:
            yield error(
                "roles",
                f"the server lacks the roles {', '.join(missing)}",
                "a superuser creates them (NOLOGIN), and the owner calls SELECT pgmta.grants();",
            )
        for each in _lost(rows, SCHEMA):
            yield each
        for schema in more_schemas():
            for each in _lost(await self._ask("missing_rights", schema=schema), schema):
                yield each

    async def autovacuum(self) -> AsyncIterator[Diagnosis]:
        """Look whether autovacuum runs."""
        settings = {row["name"]: row["setting"] for row in await self._ask("settings")}
        for name in ("autovacuum", "track_counts"):
            if settings[name] != "on":
                yield error(
                    "autovacuum",
                    f"{name} is off: the queue grows, and claims get slow",
                    f"ALTER SYSTEM SET {name} = on; SELECT pg_reload_conf();",
                )
        for row in await self._ask("unvacuumed"):
            yield error(
                "autovacuum",
                f"autovacuum is off for the table {row['name']}",
                f"ALTER TABLE pgmta.{row['name']} RESET (autovacuum_enabled);",
            )

    async def connections(self) -> AsyncIterator[Diagnosis]:
        """Look whether the connections run out."""
        ((used, most),) = (row.values() for row in await self._ask("connections"))
        if used >= _FULL_SHARE * most:
            yield warning(
                "connections",
                f"{used} of {most} connections are in use",
                "raise max_connections (a restart), or end programs that keep idle connections",
            )

    async def locks(self) -> AsyncIterator[Diagnosis]:
        """Look for sessions that keep others from tables or rows."""
        for row in await self._examination.blockers():
            if (row["seconds"] or 0.0) < _BLOCKING_S:
                continue
            waiting = f"{row['waiters']} sessions wait" if row["waiters"] else "others will wait"
            yield error(
                "locks",
                f"{blockers.described(row)} holds locks that others need: {waiting} for it",
                blockers.remedy(row),
            )

    async def horizon(self) -> AsyncIterator[Diagnosis]:
        """Look for what keeps vacuum from rows that are gone."""
        seen = (await self._ask("sees_all"))[0]
        if not seen["sees"]:
            yield unknown(
                "xmin horizon",
                "this login does not see which sessions and standbys keep vacuum from its work",
                f"a superuser runs `GRANT pg_monitor TO {seen['login']};`",
            )
        limits = {"seconds": _HELD_S, "transactions": _HELD_TRANSACTIONS}
        for number, row in enumerate(await self._ask("holders", **limits)):
            what, remedy = horizon.described(row), horizon.remedy(row)
            cost = horizon.cost(row["dead"]) if not number else "as it does, if that one ends"
            yield warning("xmin horizon", f"{what} keeps vacuum from its work: {cost}", remedy)

    async def notifications(self) -> AsyncIterator[Diagnosis]:
        """Look whether a session keeps notifications of others."""
        ((share,),) = (row.values() for row in await self._ask("notifications"))
        if share > _NOTIFY_QUEUE_SHARE:
            yield warning(
                "notifications",
                f"the queue of NOTIFY is {share:.0%} full: workers hear of mail late, and programs "
                "with a NOTIFY of their own fail",
                "end the oldest transaction of a session that listens (LISTEN), in any database",
            )

    async def slots(self) -> AsyncIterator[Diagnosis]:
        """Look for replication slots without a reader, or without the WAL that it needs."""
        limit = await self._setting("max_slot_wal_keep_size")
        for row in await self._ask("slots"):
            drop = f"SELECT pg_drop_replication_slot('{row['name']}');"
            if row["lost"]:
                yield warning(
                    "replication slots",
                    f"the slot {row['name']} has lost WAL that its reader needs, by "
                    f"max_slot_wal_keep_size = {limit} MB",
                    f"{drop} and make the standby anew",
                )
            elif row["octets"] >= _KEPT_WAL_OCTETS:
                least = "until the disk is full" if limit == "-1" else f"up to {limit} MB"
                yield warning(
                    "replication slots",
                    f"the slot {row['name']} has no reader, and keeps {row['octets'] >> 20} MB of "
                    f"WAL, {least}",
                    f"start its reader, or {drop}",
                )

    async def host_loss(self) -> AsyncIterator[Diagnosis]:
        """Say what the loss of the server's host would lose."""
        if await self._setting("transaction_read_only") == "on":
            yield unknown(
                "loss of a host",
                "it can't be told while the database takes no writes",
                "ask again when it does",
            )
            return
        rows = await self._ask("standbys")
        seen = (await self._ask("sees_all"))[0]
        slots = [row["name"] for row in await self._ask("slots") if row["physical"]]
        yield judge(
            Copies(
                await self._setting("synchronous_standby_names"),
                await self._setting("synchronous_commit"),
                [StandbyState(**row) for row in rows],
                slots,
                self._embedded,
                self._hosts,
                blind="" if seen["sees"] else seen["login"],
            )
        )

    async def publications(self) -> AsyncIterator[Diagnosis]:
        """Look for tables that a publication stops, or would stop."""
        for row in await self._ask("unidentified", schemas=[SCHEMA, *more_schemas()]):
            table = f"{row['schema']}.{row['name']}"
            remedy = f"ALTER TABLE {table} REPLICA IDENTITY FULL;"
            if row["publications"]:
                yield error(
                    "publications",
                    f"{table} is in the publication {row['publications']} and has no replica "
                    "identity: PostgreSQL refuses to change its rows",
                    remedy,
                )
            else:
                yield warning(
                    "publications",
                    f"{table} has no replica identity: a publication for all tables stops its mail",
                    remedy,
                )

    async def bloat(self) -> AsyncIterator[Diagnosis]:
        """Look for tables that vacuum does not keep up with."""
        for row in await self._ask("bloat", least=_MIN_DEAD_ROWS):
            yield warning(
                "bloat",
                f"the table {row['name']} has {row['dead']} dead rows beside {row['live']}, "
                f"{row['octets'] >> 20} MB",
                f"end old transactions, then VACUUM pgmta.{row['name']};",
            )

    async def transaction_age(self) -> AsyncIterator[Diagnosis]:
        """Look how near the server is to the end of its transaction numbers."""
        number = (await self._ask("age"))[0]["age"]
        if number > _OLD_TRANSACTIONS:
            yield error(
                "transaction age",
                f"the oldest row is {number / 1e6:.0f} million transactions old; at 2,000 million "
                "PostgreSQL takes no more mail",
                "end old transactions and slots, then VACUUM; as superuser",
            )

    async def indexes(self) -> AsyncIterator[Diagnosis]:
        """Look for indexes that are not used."""
        for row in await self._ask("invalid_indexes"):
            yield error(
                "indexes",
                f"the index {row['name']} is invalid, so no statement uses it",
                f"REINDEX INDEX CONCURRENTLY pgmta.{row['name']};",
            )

    async def triggers(self) -> AsyncIterator[Diagnosis]:
        """Look for triggers that are switched off."""
        for row in await self._ask("disabled_triggers"):
            yield error(
                "triggers",
                f"the trigger {row['name']} of {row['of']} is off: bodies go too early, or never",
                f"ALTER TABLE pgmta.{row['of']} ENABLE TRIGGER {row['name']};",
            )

    async def clock(self) -> AsyncIterator[Diagnosis]:
        """Compare the clock of the server with that of this host."""
        before = time.time()
        there = (await self._ask("clock"))[0]["now"]
        after = time.time()
        apart = there - after if there > after else before - there
        if apart > _MAX_CLOCK_ERROR_S:
            side = "ahead of" if there > after else "behind"
            yield warning(
                "clock",
                f"the clock of PostgreSQL is {age(apart)} {side} that of this host",
                "run a time service (chrony or systemd-timesyncd) on both",
            )

    async def days(self) -> AsyncIterator[Diagnosis]:
        """Look whether tomorrow's partitions of the logs are there."""
        missing = await self._ask("missing_days")
        foreign = [
            f"{row['name']} ({row['function']})" for row in await self._ask("event_triggers")
        ]
        for row in missing:
            remedy = f"start queued, or SELECT pgmta.days_make('{row['log']}', 7);"
            if foreign:
                remedy += (
                    f" If an event trigger refuses it, of {', '.join(foreign)}, its function needs "
                    "SECURITY DEFINER and a search_path of its own."
                )
            yield error("days", f"the log {row['log']} has no partition for tomorrow", remedy)

    async def collation(self) -> AsyncIterator[Diagnosis]:
        """Look whether the operating system orders texts as it did when the database was made."""
        for row in await self._ask("collation"):
            yield warning(
                "collation",
                f"the collation of the database is of version {row['made'] or 'unknown'}, and the "
                f"system has {row['now'] or 'none'}: indexes of texts may miss rows",
                f"REINDEX DATABASE {row['name']}; "
                f"ALTER DATABASE {row['name']} REFRESH COLLATION VERSION; as its owner",
            )


def _lost(rows: list[dict[str, Any]], schema: str) -> Iterator[Diagnosis]:
    """Yield a line for each role with the rights that it lacks."""
    lost: dict[str, list[str]] = {}
    for row in rows:
        if row["privilege"]:
            thing = f" on {row['object']}" if row.get("object") else ""
            lost.setdefault(row["role"], []).append(f"{row['privilege']}{thing}")
    for role, rights in lost.items():
        yield error(
            "roles",
            f"{'each login' if role == 'public' else f'the role {role}'} lacks rights: "
            f"{', '.join(rights)}",
            f"as the owner of schema {schema}: SELECT {schema}.grants();",
        )
