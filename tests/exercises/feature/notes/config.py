"""Section `notes` of queued.yaml and of web.yaml, and a key of the section `retention`."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from pgmta.config.loader import Problem
from pgmta.config.types import Period, Section
from queued.config import QueuedConfig


class Notes(Section):
    """Say what is noted."""

    needs_restart: ClassVar[bool] = True

    text: str = Field(default="a note", description="what the duty writes")


class NotesRetention(Section):
    """How long notes are kept."""

    notes: Period = Field(default=86400.0, description="notes are deleted at this age")


class NotesPage(Section):
    """Say what stands on the page of notes."""

    title: str = Field(default="", description="the line above the notes; empty: no page")


def problems(config: QueuedConfig) -> list[Problem]:
    """Return the mistakes that a key alone does not show."""
    if config.section(Notes).text and not config.section(NotesRetention).notes > 60.0:
        return [(("retention", "notes"), "is too short for notes.text")]
    return []
