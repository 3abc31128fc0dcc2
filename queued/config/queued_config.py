"""The file queued.yaml: its sections, and the files that it names."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, PrivateAttr, Strict, field_validator

from pgmta.action import Action
from pgmta.config.environment import Environment, Log, QueueDatabase, environment_field
from pgmta.config.joined import JoinedFile, joined
from pgmta.config.loader import Problem, load, load_lines, mistakes
from pgmta.config.token_keys import TokenKeys
from pgmta.config.types import Duration, Period, Section, at_least, is_address, refuse_twice
from pgmta.config.urls import parse_public_url
from pgmta.features import loaded
from queued.config.answer_index import AnswerIndex, shipped_index
from queued.config.answers import Answers, shipped_answers
from queued.config.bounce_texts import BounceTexts, read_texts, shipped_texts
from queued.config.bounces import Bounces
from queued.config.delivery import Delivery
from queued.config.mail_conditions import Pattern, Target
from queued.config.retry import Retry
from queued.config.shaping import Shaping, whole_shaping
from queued.config.signing import Signing
from queued.config.worker import Worker


class Process(Section):
    """The times that hold for every worker of the process."""

    needs_restart: ClassVar[bool] = True

    lease: Annotated[Period, at_least("3s")] = Field(
        default=60.0, description="other workers take over a dead worker's rows after this"
    )
    poll: Period = Field(
        default=1.0,
        description="how often to poll for due rows; of several workers that share rows only the "
        "one with the turn does, and the others poll five times less often",
    )
    watch: Period | None = Field(
        default=0.04,
        description="how often to look for mail of SQL programs, which send no notification; up "
        "to eight times less often after a quiet time; null: it waits for the poll",
    )
    drain: Duration = Field(
        default=30.0, description="at SIGTERM, deliveries under way have this long to end"
    )


class Retention(Section):
    """How long logs and old tokens are kept."""

    needs_restart: ClassVar[bool] = True

    attempts: Annotated[Period, at_least("1d")] = Field(
        default=90 * 86400.0,
        description="day partitions of attempts are dropped at this age",
    )
    transcripts: Annotated[Period, at_least("1d")] = Field(
        default=14 * 86400.0,
        description="day partitions of transcripts are dropped at this age",
    )


class Urgent(Section):
    """Slots and connections that are reserved for mail which must not wait behind other mail."""

    needs_restart: ClassVar[bool] = True

    priority: Annotated[int, Strict(), Field(ge=0, le=3)] | None = Field(
        default=1,
        description="mail of this priority (0 to 3) or a lower number is urgent; null: none",
    )
    share: Annotated[float, Strict()] = Field(
        default=0.1,
        ge=0,
        le=0.9,
        description="reserved for it: slots beside workers[].concurrency, as a share of these, "
        "rounded up; and connections of delivery.connections, rounded down",
    )

    def slots(self, concurrency: int) -> int:
        """Return the reserved slots of a worker with that concurrency."""
        return 0 if self.priority is None else math.ceil(self.share * concurrency)

    def connections(self, most: int) -> int:
        """Return how many of `most` connections other mail leaves free."""
        return 0 if self.priority is None else int(self.share * most)


HOLDER_PREFIX = "hold_all"
"""How the name of the worker begins that holds all mail of a staging system."""

STAGING_KEYS = ("redirect", "hold_all")
"""Keys of `delivery` that a reload does not change."""


class QueuedLog(Log):
    """Choose what the process logs to stderr."""

    attempts: bool = Field(
        default=False,
        description="a line per attempt, at level info: message, row, sender, recipient, next hop, "
        "delays in seconds by phase, TLS, status, reply and answer class",
    )


class QueuedTokens(TokenKeys):
    """Name the keys of signed tokens by purpose, and the page of links that unsubscribe."""

    unsubscribe_url: Annotated[str, BeforeValidator(parse_public_url)] | None = Field(
        default=None,
        description="`public.url` of web.yaml, with which links begin that unsubscribe; null: mail "
        "with such a link waits",
    )


class QueuedEnvironment(Environment):
    """Describe the host, the folder and the rows of the process."""

    database: QueueDatabase = Field(default=QueueDatabase())


class QueuedConfig(JoinedFile):
    """The whole of queued.yaml."""

    environment: QueuedEnvironment = environment_field()
    process: Process = Field(default=Process())
    workers: list[Worker] = Field(
        default=[Worker()], min_length=1, description="what this configuration runs"
    )
    urgent: Urgent = Field(default=Urgent())
    delivery: Delivery = Field(default=Delivery())
    shaping: Path | None = Field(
        default=None,
        description="file with routes and logins, relative to this one; its routes go first",
    )
    answers: Path | None = Field(
        default=None,
        description="file with answer rules, relative to this one; they go before the shipped ones",
    )
    routes: dict[Pattern, Target] = Field(
        default={"*": "mx"},
        description="recipient domain, *.domain or * → host:port (port 25 if absent) or mx",
    )
    retry: Retry = Field(default=Retry())
    bounces: Bounces = Field(default=Bounces())
    signing: Signing = Field(default=Signing())
    tokens: QueuedTokens = Field(default=QueuedTokens())
    retention: Retention = Field(default=Retention())
    log: QueuedLog = Field(default=QueuedLog())
    _routing: Shaping = PrivateAttr(default_factory=Shaping)
    _answering: AnswerIndex | None = PrivateAttr(default=None)
    _texts: BounceTexts | None = PrivateAttr(default=None)

    @field_validator("workers")
    @classmethod
    def _distinct(cls, workers: list[Worker]) -> list[Worker]:
        names = [worker.name for worker in workers]
        refuse_twice("workers", names)
        if found := [name for name in names if name.startswith(HOLDER_PREFIX)]:
            raise ValueError(f"{found[0]!r}: {HOLDER_PREFIX} is the worker of delivery.hold_all")
        return workers

    @property
    def warnings(self) -> list[str]:
        """Risks of signing, and keys that keep mail from its recipients."""
        found = self.signing.risks
        if self.delivery.redirect:
            found.append(f"delivery.redirect: staging: all mail goes to {self.delivery.redirect}")
        if self.delivery.hold_all:
            found.append("delivery.hold_all: staging: all mail is held until it is released")
        return found

    @property
    def routing(self) -> Shaping:
        """The content of the file `shaping`; without a file it is empty."""
        return self._routing

    @property
    def answering(self) -> AnswerIndex:
        """The answer rules: those of the file `answers`, if there is one, before the shipped."""
        return self._answering or shipped_index()

    @property
    def texts(self) -> BounceTexts:
        """The texts of DSNs; without a file they are the shipped ones."""
        return self._texts or shipped_texts()

    def with_files(
        self,
        routing: Shaping,
        answering: AnswerIndex | None = None,
        texts: BounceTexts | None = None,
    ) -> QueuedConfig:
        """Return the same with the contents of other files."""
        config = self.model_copy()
        config._routing = routing  # noqa: SLF001 - the copy's own
        config._answering = answering  # noqa: SLF001
        config._texts = texts  # noqa: SLF001
        return config


def whole_model() -> type[QueuedConfig]:
    """Return QueuedConfig with the sections and the keys of the features."""
    return joined(QueuedConfig)


type Parsers = Mapping[str, Callable[[Any], Any] | None]
"""For each transport the function that reads its parameters. It raises ValueError."""


def read_config(
    path: Path, transports: Parsers | None = None, *, passwords: bool = True
) -> QueuedConfig:
    """Return the configuration with its shaping, its answers and the passwords of its logins.

    `transports` read the parameters in their routes; without them, names and parameters are not
    checked.

    Raises ConfigError with the mistakes.
    """
    config = load(path, whole_model())
    texts = _texts(path, config)
    problems = _wrong_dane(config)
    for check in loaded("config_checks"):
        problems += check(config)
    if config.tokens.unsubscribe_url and not config.tokens.unsubscribe:
        reason = "tokens.unsubscribe has no key, which signs its links"
        problems.append((("tokens", "unsubscribe_url"), reason))
    problems += ((("retry", *keys), reason) for keys, reason in config.retry.problems())
    if problems:
        raise mistakes(path, problems)
    routing = _shaping(path, config, transports, passwords=passwords)
    return _staged(config).with_files(routing, _answers(path, config.answers), texts)


def _staged(config: QueuedConfig) -> QueuedConfig:
    """Return the same with the worker that `delivery.hold_all` asks for."""
    if not config.delivery.hold_all:
        return config
    where = config.environment.database.where  # two configurations may share a database
    name = f"{HOLDER_PREFIX}_{zlib.crc32(where.encode()):08x}" if where else HOLDER_PREFIX
    holds = Worker(name=name, action=Action.HOLD, where="true", reason="delivery.hold_all")
    return config.model_copy(update={"workers": [*config.workers, holds]})


def _wrong_dane(config: QueuedConfig) -> list[Problem]:
    """Return the routes that ask for TLSA records of an address."""
    if config.delivery.tls.mode != "dane":
        return []
    found = {name: to.host for name, to in config.routes.items() if to != "mx"}
    return [
        (("routes", name), f"delivery.tls.mode is dane, but no TLSA record can be for {host}; "
         "write the host's name, or a route with tls: verify in shaping.yaml")
        for name, host in found.items() if is_address(host)
    ]  # fmt: skip


def _shaping(
    path: Path, config: QueuedConfig, transports: Parsers | None, *, passwords: bool
) -> Shaping:
    if config.shaping is None:
        return config.routing
    file = _file(path, "shaping", config.shaping)
    shaping = load(file, whole_shaping(), transports=transports).with_retry(config.retry)
    problems = shaping.problems(config.delivery.tls.mode)
    if passwords:
        problems += shaping.read_passwords(file.parent)
    if problems:
        raise mistakes(file, problems)
    return shaping


def _answers(path: Path, name: Path | None) -> AnswerIndex | None:
    if name is None:
        return None
    file = _file(path, "answers", name)
    answers, lines = load_lines(file, Answers)
    groups = {group for book in shipped_answers() for group in book.providers}
    if problems := answers.problems(groups):
        raise mistakes(file, problems)
    answers = answers.found_at(str(name), lines)
    return AnswerIndex([answers, *shipped_answers()])


def _file(path: Path, key: str, name: Path) -> Path:
    """Return the file that a key names, relative to `path`. Raises ConfigError."""
    file = path.parent / name
    try:
        file.open("rb").close()
    except OSError as error:
        raise mistakes(path, [((key,), f"{file}: {error.strerror}")]) from None
    return file


def _texts(path: Path, config: QueuedConfig) -> BounceTexts:
    """Return the texts of DSNs. Raises ConfigError with their mistakes."""
    folder = config.bounces.templates
    if folder is not None:
        folder = path.parent / folder
        if not folder.is_dir():
            raise mistakes(path, [(("bounces", "templates"), f"{folder}: no such folder")])
        if not any(folder.glob("*.txt")):
            reason = f"{folder}: has no text, such as en.txt"
            raise mistakes(path, [(("bounces", "templates"), reason)])
    try:
        return read_texts(folder, config.bounces.language)
    except ValueError as error:
        raise mistakes(path, [(("bounces", "language"), str(error))]) from None
