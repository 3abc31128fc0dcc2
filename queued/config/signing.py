"""Section `signing` of queued.yaml: which mail gets signatures of DKIM, and by which keys."""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime
from functools import cached_property
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from pgmta.config.types import FOLDER, Period, Section, checked, each_by, hint
from pgmta.mail.address import mailbox_key, normalise_domain
from pgmta.model import TRUSTED, Origin
from pgmta.selection import Selection, Term
from queued.config.mail_conditions import MailConditions, Patterns, domain_term

_SELECTOR = re.compile(r"[a-z0-9](?:[a-z0-9_-]{0,61}[a-z0-9])?(?:\.[a-z0-9_-]{1,63})*")

SIGNED_FIELDS = (
    "From", "Sender", "Reply-To", "Subject", "Date", "Message-ID", "To", "Cc", "MIME-Version",
    "Content-Type", "Content-Transfer-Encoding", "Content-ID", "Content-Description",
    "Resent-Date", "Resent-From", "Resent-Sender", "Resent-To", "Resent-Cc", "Resent-Message-ID",
    "In-Reply-To", "References", "List-ID", "List-Help", "List-Unsubscribe",
    "List-Unsubscribe-Post", "List-Subscribe", "List-Post", "List-Owner", "List-Archive",
    "Auto-Submitted",
)  # fmt: skip
"""Header fields that a signature covers if they are there (RFC 6376, section 5.4.1)."""

_ORIGINS = get_args(Origin.__value__)
_FIELD_NAMES = {name.lower(): name for name in SIGNED_FIELDS}


def parse_selector(text: Any) -> str:
    """Return a DKIM selector in lower case (RFC 6376, section 3.1). Raises ValueError."""
    word = str(text).lower() if isinstance(text, str | int) else ""
    if len(word) > 200 or not _SELECTOR.fullmatch(word):
        raise ValueError(f"{text!r} is no DKIM selector: expected letters, digits, - and .")
    return word


def parse_signing_domain(text: Any) -> str:
    """Return a domain name as the tag `d=` has it, in A-labels. Raises ValueError."""
    domain = checked("expected a domain: ", normalise_domain, text) if isinstance(text, str) else ""
    if not domain or domain.startswith("["):
        raise ValueError(f"expected a domain, not {text!r}")
    return domain


def parse_instant(value: Any) -> float:
    """Return the seconds since 1970 of a time of RFC 3339, or of a date. Raises ValueError."""
    try:
        time = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        reason = f"{value!r} is no time; write for example 2026-12-01T00:00:00Z"
        raise ValueError(reason) from None


def _signs(value: Any) -> str:
    if value in ("from", "sender", "none"):
        return str(value)
    if isinstance(value, str) and "." not in value:
        raise ValueError(f"expected from, sender, none or a domain, not {value!r}")
    return parse_signing_domain(value)


def _origin(word: Any) -> str:
    if word in _ORIGINS:
        return str(word)
    raise ValueError(f"no mail comes in as {word!r}; {hint(str(word), _ORIGINS)}")


def _field(value: Any) -> str:
    name = _FIELD_NAMES.get(value.lower()) if isinstance(value, str) else None
    if not name:
        raise ValueError(f"signatures do not cover {value!r}; {hint(str(value), SIGNED_FIELDS)}")
    return name


Domain = Annotated[str, BeforeValidator(parse_signing_domain)]
DkimSelector = Annotated[str, BeforeValidator(parse_selector)]
Instant = Annotated[float, BeforeValidator(parse_instant)]
Origins = Annotated[list[str], each_by(_origin)]


class SigningKeyFile(Section):
    """A key in a file."""

    domain: Domain = Field(description="domain of the signature (d=)")
    selector: DkimSelector = Field(description="DKIM selector (s=)")
    file: str = Field(
        description="file with the private key (PEM), relative to this one; other users must not "
        "be able to read it"
    )
    active_from: Instant = Field(
        default=0.0,
        description="time (RFC 3339) from which it signs: of the keys of one type, the last one "
        "that is active does; 0: always",
    )

    @field_validator("file")
    @classmethod
    def _beside(cls, path: str, info: ValidationInfo) -> str:
        return os.path.join((info.context or {}).get(FOLDER, ""), path)


class SigningRule(MailConditions):
    """Which keys sign some mail. All of its conditions have to be met."""

    author: Patterns | None = Field(
        default=None,
        alias="from",
        description="domain of the field From, *.domain (all below it), * or a list of these",
    )
    submitted: bool | None = Field(
        default=None,
        description="true: only mail of users who logged in, or of SQL sessions; false: only other "
        "mail",
    )
    origin: Origins = Field(
        default=list(TRUSTED),
        min_length=1,
        description="how the mail came in, one or a list of: stranger; network (relay.networks); "
        "certificate (a trusted one); user (who may send from its From); login (a user, From is "
        "another's); sql; queued (DSNs)",
    )
    sign: Annotated[str, BeforeValidator(_signs)] = Field(
        default="from",
        description="domain of the keys: from (that of the field From), sender (that of the "
        "reverse-path), a domain, or none: no signature",
    )
    parents: bool = Field(
        default=True,
        description="from and sender: without keys of the domain, those of the nearest domain "
        "above it",
    )
    selectors: list[DkimSelector] | None = Field(
        default=None, min_length=1, description="DKIM selectors of the keys; null: all"
    )
    missing: Literal["defer", "send"] | None = Field(
        default=None, description="as signing.missing, which is the default"
    )

    @cached_property
    def of_path(self) -> Selection:
        """Return the conditions on the reverse-path, in its one spelling, and on From."""
        author = domain_term("from_domain", self.author)
        addresses = None if self.sender is None else Term("sender", map(mailbox_key, self.sender))
        domain = domain_term("sender_domain", self.sender_domain)
        return Selection.every(author, domain, addresses)


class Signing(Section):
    """Signatures of DKIM at delivery; without keys no mail is signed."""

    keys: list[SigningKeyFile] = Field(default=[], description="keys in files")
    table: bool = Field(default=False, description="sign by the keys of the table dkim_keys too")
    rules: list[SigningRule] = Field(
        default=[],
        description="the first that matches says who signs; mail that matches none is not signed; "
        "without rules the domain of From signs, or one above it, if it has keys; mail of "
        "strangers is signed only by rules whose origin has stranger",
    )
    missing: Literal["defer", "send"] = Field(
        default="defer",
        description="mail whose key is missing or broken is tried again later, or sent unsigned",
    )
    oversign: list[Annotated[str, BeforeValidator(_field)]] = Field(
        default=["From", "Subject", "Date"],
        description="fields of which no further one can be added on the way; From always is one",
    )
    expire: Period | None = Field(
        default=None, description="signatures end after this time (x=); null: never"
    )

    @field_validator("keys")
    @classmethod
    def _distinct(cls, keys: list[SigningKeyFile]) -> list[SigningKeyFile]:
        names: set[tuple[str, str]] = set()
        for key in keys:
            if (key.domain, key.selector) in names:
                raise ValueError(f"two keys are called {key.domain}/{key.selector}")
            names.add((key.domain, key.selector))
        return keys

    @model_validator(mode="after")
    def _has_keys(self) -> Signing:
        if self.rules and not self.on and any(rule.sign != "none" for rule in self.rules):
            raise ValueError("there are rules, but neither keys nor the table")
        return self

    @property
    def risks(self) -> list[str]:
        """Sentences about rules that sign what others write."""
        found = []
        for number, rule in enumerate(self.rules):
            others = [name for name in rule.origin if name not in TRUSTED]
            if others and rule.sign != "none":
                whom = {"stranger": "strangers", "login": "users with a From of others"}
                names = " and ".join(whom[name] for name in others)
                found.append(f"signing.rules[{number}]: signs mail of {names}: receivers take it "
                             "for mail of the domain that signs")  # fmt: skip
        return found

    @property
    def on(self) -> bool:
        """Whether there may be keys."""
        return bool(self.keys or self.table)
