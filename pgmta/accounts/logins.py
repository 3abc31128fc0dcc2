"""Logins of all sessions of a process: users and other authenticators behind the throttle."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from pgmta.accounts.login import Authenticate, AuthRefused, AuthUnavailable, Login
from pgmta.accounts.mechanisms import SCRAM, Credentials
from pgmta.accounts.networks import network_of
from pgmta.accounts.scram import ScramExchange
from pgmta.accounts.throttle import Notes, Throttle
from pgmta.accounts.users import Entry, Users
from pgmta.config.authentication import Authentication
from pgmta.config.types import Network
from pgmta.logs import get
from pgmta.password import login_name, prepared
from pgmta.postgres.outage import Outage
from pgmta.postgres.resources import Resources
from pgmta.store.accounts.logins import LoginStore

_MAX_LEVEL_AGE_S = 1.0  # afterwards the failures that all processes saw are read again
_MAX_BLOCKED_LOOKUPS_PER_S = 20  # names that are looked up for clients that are blocked
_DAY_S = 86400.0
_XCLIENT = "XCLIENT"  # stands in the log in place of a mechanism
_LOG_INTERVAL_S = 1.0  # for lines about failed logins

log = get("auth")


class TooManyFailures(AuthUnavailable):
    """The client, its network or the user has failed too often."""


@dataclass(slots=True)
class _Attempt:
    """A login as the throttle sees it."""

    client: str
    network: Network | None
    gates: list[str]
    """Units that keep it out if they are full."""
    counted: list[str]
    """Units that its failure counts for."""
    own: bool
    """Whether the user has logged in from this network before."""
    quiet: bool
    """Whether it is let through only for that: its failure looks as if it was not."""


class Logins:
    """Judges logins. A failure of a user from an own network counts apart from all others.

    So a user whose password others try still gets in. The log has a line per second about failures.
    It has a name only if a user has it, because some people type their password there.
    """

    def __init__(self, resources: Resources, config: Authentication, outage: Outage) -> None:
        store = LoginStore(resources.link("logins", {"statement_timeout": "10s"}))
        self.mechanisms = tuple(config.mechanisms)
        """In the order of the configuration."""
        self.users = Users(store, outage)
        """The table of users."""
        self.throttle = Throttle(config.failures)
        """The failures."""
        self._notes = Notes(store, self.throttle)
        self._checks: dict[tuple[bytes, int | None], asyncio.Task[bool]] = {}
        # a second of the clock, and the names that were looked up in it for blocked clients
        self._looks = 0.0, 0
        self._failed = 0  # logins that failed since the last line in the log
        self._logged = self._troubled = self._told = -_LOG_INTERVAL_S

    async def password(self, mechanism: str, given: Credentials, client: str) -> Login | None:
        """Return the user of the table, or None if name and password are not right.

        Raises TooManyFailures, and AuthUnavailable.
        """
        name, password = _name(given.name), prepared(given.password)
        digest, users = self.users.digest(name, password), self.users
        entry = users.remembered(name)
        if entry and (login := await self._again(entry, digest, mechanism, client)):
            return login
        entry, attempt = await self._attempt(name, client)
        right = entry.remembered_verdict(digest, time.monotonic())
        if right is None:
            # an old password proves nothing after `queuectl user passwd`
            key = digest, entry.verifier.version
            check = self._checks.get(key)
            if not check:
                check = asyncio.create_task(self._check(entry, attempt, password, digest))
                self._checks[key] = check
                check.add_done_callback(lambda task: self._checked(key, task))
            right = await asyncio.shield(check)
        return self._conclude(entry, attempt, mechanism, right=right)

    async def _again(
        self, entry: Entry, digest: bytes, mechanism: str, client: str
    ) -> Login | None:
        """Return the user if the password is remembered and all is as it was."""
        network, users = network_of(client), self.users
        if network not in entry.own or not entry.remembered_verdict(digest, time.monotonic()):
            return None
        if not users.fresh:
            await users.refresh()
        if not users.current(entry) or entry.objection(client):
            return None
        if self.throttle.blocked([await self._own_unit(entry.verifier.name, network)]):
            return None
        return entry.login(mechanism)

    async def scram(self, exchange: ScramExchange, client: str) -> bytes:
        """Return the challenge of a SCRAM exchange. Raises as `password`."""
        entry, _ = await self._attempt(_name(exchange.name), client)
        return exchange.challenge(self.users.scram_keys(entry))

    async def scram_end(
        self, exchange: ScramExchange, final: bytes, client: str
    ) -> tuple[Login | None, bytes]:
        """Return the user and the last message of the server. Raises as `password`, and Malformed.

        The user is None, and the message empty, if name and password are not right.
        """
        entry, attempt = await self._attempt(_name(exchange.name), client)
        message = exchange.verify(final)
        right = bool(message) and entry.exists
        if not right:
            self._count(attempt)
        login = self._conclude(entry, attempt, SCRAM, right=right)
        return login, message if login else b""

    async def vouched(self, name: str, client: str) -> Login | None:
        """Return the user whom a proxy has let in, or None if the table keeps the user out.

        A name that is not in the table has the rights of a user of a hook. Raises AuthUnavailable.
        """
        entry, _ = await self.users.find_user(name)
        if not entry.exists:
            return Login(name, _XCLIENT)
        if objection := entry.objection(client):
            self._log(client, _XCLIENT, name, objection)
            return None
        return entry.login(_XCLIENT)

    async def other(
        self, authenticate: Authenticate, mechanism: str, given: Credentials | None, client: str
    ) -> Login | None:
        """Return the user whom `authenticate` accepts, or None.

        Without a name its failures count for the client alone. A user of a hook has own networks
        as one of the table has. Raises as `password`, and AuthRefused.
        """
        entry, attempt = await self._hooked(given, client)
        if not await self.throttle.enter(attempt.gates):
            self._refuse(client, attempt.gates)
        failed = True
        try:
            name, password = (given.name, given.password) if given else ("", b"")
            login = await authenticate(mechanism, name, password, client)
            failed = login is None
        except AuthUnavailable:
            failed = False
            raise
        except AuthRefused as error:
            failed = str(error)[:1] == "5"
            if not (failed and attempt.quiet):
                raise
            login = None
        finally:
            if failed:
                self._count(attempt)
                self._log(client, mechanism, "", "the authenticator refuses it")
            self.throttle.leave(attempt.gates)
        if failed and attempt.quiet:
            raise TooManyFailures("too many failed logins")
        if login and entry:
            self._seen(entry, attempt.network)
        return login

    async def _hooked(
        self, given: Credentials | None, client: str
    ) -> tuple[Entry | None, _Attempt]:
        """Look up the user of a login that a hook judges. Raises as `password`."""
        name = _name(given.name) if given else ""
        if name:
            return await self._attempt(name, client)
        units = list(self.throttle.places(client))
        if given:  # a name that the table can't have
            units.append(f"user {await self.users.key(given.name)}")
        return None, _Attempt(client, None, units, units, own=False, quiet=False)

    # -- one attempt --

    async def _attempt(self, name: str, client: str) -> tuple[Entry, _Attempt]:
        """Look up a name and the failures. Raises TooManyFailures, AuthUnavailable."""
        throttle, places, network = self.throttle, self.throttle.places(client), network_of(client)
        if throttle.blocked(places) and not self._may_look():
            self._refuse(client, places)
        user, own_unit = f"user {await self.users.key(name)}", await self._own_unit(name, network)
        units = [*places, user, own_unit]
        entry, unread = self.users.remembered(name), throttle.unread(units, _MAX_LEVEL_AGE_S)
        if entry and not unread and not self.users.fresh:
            await self.users.refresh()
        if not entry or unread or not self.users.current(entry):
            entry, levels = await self.users.find_user(name, unread)
            throttle.learn(unread, levels, self._notes.failures)
        others = [*places, user]
        gates, counted, own = others, others, network in entry.own
        if own:
            gates, counted = [own_unit], [own_unit, *places]
        elif entry.listed(client):
            gates = counted = [own_unit, *places]
        if throttle.blocked(gates):
            self._refuse(client, gates, entry.user)
        return entry, _Attempt(client, network, gates, counted, own, throttle.blocked(others))

    async def _own_unit(self, name: str, network: Network | None) -> str:
        return f"own {await self.users.key(name)} {network}"

    def _may_look(self) -> bool:
        """Return whether a name may be looked up for a client that is blocked."""
        second, looks = self._looks
        now = time.monotonic() // 1.0
        self._looks = (now, 1) if now > second else (second, looks + 1)
        return self._looks[1] <= _MAX_BLOCKED_LOOKUPS_PER_S

    async def _check(self, entry: Entry, attempt: _Attempt, password: bytes, digest: bytes) -> bool:
        """Check a password; the failure counts although the client may have gone."""
        if not await self.throttle.enter(attempt.gates):
            self._refuse(attempt.client, attempt.gates, entry.user)
        failed = True
        try:
            failed = not await self.users.check(
                entry, password, digest, attempt.client, first=attempt.own
            )
        except AuthUnavailable:
            failed = False
            raise
        finally:
            if failed:
                self._count(attempt)
            self.throttle.leave(attempt.gates)
        return not failed

    def _checked(self, key: tuple[bytes, int | None], task: asyncio.Task[bool]) -> None:
        del self._checks[key]
        if not task.cancelled():
            task.exception()  # the sessions get it, if they are still there

    def _count(self, attempt: _Attempt) -> None:
        for unit in attempt.counted:
            self._notes.add_failure(unit)

    def _conclude(
        self, entry: Entry, attempt: _Attempt, mechanism: str, *, right: bool
    ) -> Login | None:
        """Return the user, or None; note network or failure."""
        objection = entry.objection(attempt.client) if right or not entry.exists else ""
        if right and not objection:
            self._seen(entry, attempt.network)
            return entry.login(mechanism)
        if right:
            self._count(attempt)
        reason = objection or "wrong password"
        self._log(attempt.client, mechanism, entry.user, reason)
        if attempt.quiet:
            raise TooManyFailures("too many failed logins")
        return None

    def _seen(self, entry: Entry, network: Network | None) -> None:
        now = time.monotonic()
        if network and now > entry.noted.get(network, -_DAY_S) + _DAY_S:
            entry.noted[network] = now
            entry.own.add(network)
            self._notes.add_network(entry.verifier.name, network)

    def refuse_identity(self, mechanism: str, client: str) -> None:
        """Log a login that was refused because the user may not act for others."""
        self._log(client, mechanism, "", "the identity to act as is another user")

    def _log(self, client: str, mechanism: str, user: str, reason: str) -> None:
        self._failed += 1
        now = time.monotonic()
        if now >= self._logged + _LOG_INTERVAL_S:
            log.info("login failed", user=user, client=client, mechanism=mechanism,
                     reason=reason, failures=self._failed)  # fmt: skip
            self._failed, self._logged = 0, now

    def _refuse(self, client: str, units: Sequence[str], user: str = "") -> NoReturn:
        """Refuse a login because of earlier failures; log whose, at most once per second."""
        now = time.monotonic()
        if now >= self._told + _LOG_INTERVAL_S:
            self._told = now
            limit = next((unit for unit in units if self.throttle.blocked([unit])), units[-1])
            # the key `address` sets the other limits too
            key = "user" if limit.startswith("user ") else "address"
            log.info("login refused", user=user, client=client, reason="too many failed logins",
                     limit=f"auth.failures.{key}")  # fmt: skip
        raise TooManyFailures("too many failed logins")

    def unavailable(self, error: Exception) -> None:
        """Log that a login could not be judged, at most once per second."""
        now = time.monotonic()
        if now >= self._troubled + _LOG_INTERVAL_S:
            self._troubled = now
            log.warning("logins can't be judged", reason=str(error))

    async def close(self) -> None:
        """Write the failures that are left, and end."""
        for check in list(self._checks.values()):
            check.cancel()
        await self._notes.close()
        self.users.close()


def _name(text: str) -> str:
    """Return a login name as the table has it; empty if no user can have it."""
    try:
        return login_name(text)
    except ValueError:
        return ""
