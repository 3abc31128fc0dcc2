"""The whole of queued.yaml: its sections. Twin of etc/queued.yaml."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, PrivateAttr, field_validator

from pgmta.config.environment import Environment, environment_field
from pgmta.config.types import Section
from queued.config.answer_index import AnswerIndex, shipped_index
from queued.config.answers import Answers, shipped_answers
from queued.config.bounce_texts import BounceTexts, shipped_texts
from queued.config.bounces import Bounces
from queued.config.delivery import Delivery
from queued.config.log import QueuedLog
from queued.config.process import Process
from queued.config.retention import Retention
from queued.config.retry import Retry
from queued.config.routes import Pattern, Target
from queued.config.shaping import Shaping
from queued.config.signing import Signing
from queued.config.urgent import Urgent
from queued.config.worker import Worker


class QueuedConfig(Section):
    """The whole of queued.yaml."""

    environment: Environment = environment_field()
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
    retention: Retention = Field(default=Retention())
    log: QueuedLog = Field(default=QueuedLog())
    _routing: Shaping = PrivateAttr(default_factory=Shaping)
    _answering: AnswerIndex | None = PrivateAttr(default=None)
    _texts: BounceTexts | None = PrivateAttr(default=None)

    @field_validator("workers")
    @classmethod
    def _distinct(cls, workers: list[Worker]) -> list[Worker]:
        names = [worker.name for worker in workers]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two workers are called {name!r}")
        return workers

    @property
    def routing(self) -> Shaping:
        """The content of the file `shaping`; without a file it is empty."""
        return self._routing

    def with_routing(self, shaping: Shaping) -> QueuedConfig:
        """Return the same with the content of the file `shaping`."""
        config = self.model_copy()
        config._routing = shaping
        return config

    @property
    def answering(self) -> AnswerIndex:
        """The answer rules: those of the file `answers`, if there is one, before the shipped."""
        return self._answering or shipped_index()

    def with_answering(self, answers: Answers) -> QueuedConfig:
        """Return the same with the content of the file `answers`."""
        config = self.model_copy()
        config._answering = AnswerIndex([answers, *shipped_answers()])
        return config

    @property
    def texts(self) -> BounceTexts:
        """The texts of DSNs; without a file they are the shipped ones."""
        return self._texts or shipped_texts()

    def with_texts(self, texts: BounceTexts) -> QueuedConfig:
        """Return the same with the texts of DSNs."""
        config = self.model_copy()
        config._texts = texts
        return config
