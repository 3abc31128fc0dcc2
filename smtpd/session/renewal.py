"""The look whether the user of a session is still as it was at its login."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pgmta.accounts.authenticator import AuthUnavailable
from pgmta.accounts.login import Login
from pgmta.accounts.logins import Logins
from smtpd.protocol import replies


class Renewal:
    """Looks before a mail if some user has changed since the last one, of all sessions.

    `fail` gets an error of the program, in a look or in what follows it.
    """

    def __init__(self, logins: Logins, fail: Callable[[Exception], None]) -> None:
        self._logins = logins
        self._fail = fail
        self._login: Login | None = None
        self._changes = 0  # the version of all users, as of which the user holds
        self._task: asyncio.Task[None] | None = None

    def needed(self, login: Login) -> bool:
        """Return whether the user may have changed."""
        users = self._logins.users
        if login is not self._login:
            self._login, self._changes = login, users.as_of(login)
        return bool(login.version) and not (users.fresh and users.changes == self._changes)

    def look(self, login: Login, done: Callable[[str], None]) -> None:
        """Look; `done` gets nothing, or the reply of a refusal, later."""
        self._task = asyncio.create_task(self._look(login, done))

    async def _look(self, login: Login, done: Callable[[str], None]) -> None:
        try:
            done(await self._refusal(login))
        except Exception as error:  # of this session alone, which would wait for ever
            self._fail(error)

    async def _refusal(self, login: Login) -> str:
        try:
            return "" if await self._holds(login) else replies.LOGIN_CHANGED
        except AuthUnavailable as error:
            self._logins.unavailable(error)
            return replies.UNAVAILABLE

    async def _holds(self, login: Login) -> bool:
        users = self._logins.users
        if not users.fresh:
            await users.refresh()
        changes = users.changes
        if changes != self._changes:
            entry, _ = await users.find(login.user)
            if entry.verifier.version != login.version:
                return False
            self._changes = changes
        return True

    def abandon(self) -> None:
        """Wait for nothing any more: the session has ended."""
        if self._task:
            self._task.cancel()
