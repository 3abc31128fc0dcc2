"""What a key may send: from which addresses, for which tenant, by which credential, how soon."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from pgmta.accounts.login import Login, normalised
from pgmta.errors import AddressError
from pgmta.mail.address import parse_mailbox
from pgmta.model import ANY_SENDER
from pgmta_features.http_api.caller import ANY_CREDENTIAL, ANY_TENANT, Caller
from pgmta_features.http_api.checking import Path
from pgmta_features.http_api.problem import Problem, pointer_of

_MAX_SHOWN = 10  # senders that an error names
_MAX_ADDRESS_CHARACTERS = 100  # of an address in an error
_MAX_COMPARED = 50  # words that a wrong one is compared with, for a hint: some 2 ms


class Senders:
    """The senders of a key: addresses, and domains as `@example.org`."""

    def __init__(self, senders: tuple[str, ...]) -> None:
        self._senders = senders
        self.may_send: Callable[[str, str], bool] = Login("", "", senders=senders).may_send_from
        """Whether a mailbox with this normalised domain is one of them."""
        self.normalised = None if ANY_SENDER in senders else tuple(sorted(normalised(senders)))
        """The same as the database compares them; None: any."""

    @staticmethod
    def of(caller: Caller) -> Senders:
        """Return the senders of a key."""
        return _senders(caller.senders)

    def check(self, address: str, key: str, begin: Path = ()) -> None:
        """Check an address that is at `key` of the mail; '' is the null sender, which all may have.

        Raises Problem.
        """
        self.require_some(begin)
        if not address:
            return
        try:
            mailbox, domain = parse_mailbox(address, utf8=True)
        except AddressError as error:
            raise Problem(422, "invalid", f"{key}: {error}.",
                          pointer=pointer_of(*begin, key)) from None  # fmt: skip
        if not self.may_send(mailbox, domain):
            raise self.refused(address, pointer_of(*begin, key))

    def require_some(self, begin: Path = ()) -> None:
        """Raise Problem if there is none: such a key sends nothing."""
        if not self._senders:
            raise Problem(
                403, "sender-refused",
                "The key has no senders, so it sends nothing. Ask your operator for some.",
                pointer=pointer_of(*begin),
            )  # fmt: skip

    def refused(self, address: str, pointer: str) -> Problem:
        """Return the problem of an address from which the key may not send."""
        shown = address[:_MAX_ADDRESS_CHARACTERS]
        near = _near(shown.lower(), self._senders) or [
            each for each in self._senders if each[:1] == "@"
        ]
        known = (
            f"the nearest sender of the key is {near[0]}" if near
            else f"the key has the senders {', '.join(self._senders[:_MAX_SHOWN])}"
        )  # fmt: skip
        return Problem(403, "sender-refused", f"The key may not send from {shown}; {known}.",
                       pointer=pointer)  # fmt: skip


@lru_cache(maxsize=1024)
def _senders(senders: tuple[str, ...]) -> Senders:
    return Senders(senders)


def _near(word: str, known: tuple[str, ...]) -> list[str]:
    """Return the word that is nearest to a wrong one, if there is one; none of too many."""
    if len(known) > _MAX_COMPARED:
        return []
    return get_close_matches(word[:_MAX_ADDRESS_CHARACTERS], known, 1, 0.5)


def address_of(mailbox: str) -> str:
    """Return the address of `NAME <ADDRESS>` or `ADDRESS`, as mailboxes_judged() reads it."""
    if "<" in mailbox and mailbox.rstrip(" \t").endswith(">"):
        return mailbox.rpartition("<")[2].partition(">")[0]
    return mailbox


def tenant_of(caller: Caller, named: str | None, begin: Path = ()) -> str:
    """Return the tenant of a mail that names this one, or None. Raises Problem."""
    if caller.tenant == ANY_TENANT:
        return named or ""
    if named not in (None, caller.tenant):
        known = f"of tenant {caller.tenant}" if caller.tenant else "without a tenant"
        raise Problem(403, "tenant-refused", f"tenant: The key sends mail {known}.",
                      pointer=pointer_of(*begin, "tenant"))  # fmt: skip
    return caller.tenant


def check_credential(caller: Caller, named: Any, place: Path) -> None:
    """Raise Problem if the key may not have mail sent by a credential; None is no credential.

    Routes and budgets go by it, and those of another tenant are not for the mail of the key.
    """
    allowed = caller.credentials
    if named is None or ANY_CREDENTIAL in allowed or named in allowed:
        return
    near = _near(str(named), allowed) or allowed[:_MAX_SHOWN]
    known = (
        f"it may name {', '.join(near)}" if near
        else "it may name none. Ask your operator for it"
    )  # fmt: skip
    raise Problem(403, "credential-refused", f"The key may not name this credential; {known}.",
                  pointer=pointer_of(*place))  # fmt: skip


def priority_of(caller: Caller, named: int | None, usual: int, begin: Path = ()) -> int:
    """Return the priority of mail that names this one, or None. Raises Problem.

    `usual` is that of such mail without one. All keys may ask for it, unless theirs are later.
    """
    first, last = caller.priorities[0], max(caller.priorities[1], usual)
    if named is None:
        return max(first, usual)
    if not first <= named <= last:
        raise Problem(
            403, "priority-refused", f"priority: The key may ask for {first} to {last}.",
            pointer=pointer_of(*begin, "priority"),
        )  # fmt: skip
    return named
