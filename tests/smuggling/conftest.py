"""Fixtures of the tests of smuggling."""

from __future__ import annotations

from tests.peers.conftest import hop, place, system

__all__ = ["hop", "place", "system"]
