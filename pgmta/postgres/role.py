"""The group role that a login needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

QUESTION = """
SELECT quote_ident(current_user), to_regrole(%(role)s::text) IS NOT NULL,
    coalesce(pg_has_role(to_regrole(%(role)s::text), 'USAGE'), false),
    to_regnamespace('pgmta') IS NOT NULL
"""
"""Asks about this session and a `role`. Its one row is the `answer` of `lacking`."""


def group_of(program: str) -> str:
    """Return the group role of a daemon's logins."""
    return f"pgmta_{program}"


def lacking(role: str, answer: Sequence[Any]) -> str:
    """Return what the login lacks to work in the role, with the statement that mends it.

    Return '' if it has the role, or if the database has no schema pgmta yet.
    """
    login, made, member, schema = answer
    if member or not schema:
        return ""
    grant = f"`GRANT {role} TO {login};`"
    if made:
        return f"the login {login} is not in the role {role}: run {grant} as a superuser"
    return (
        f"the role {role} is missing: run `CREATE ROLE {role};` and {grant} as a superuser, and "
        "`SELECT pgmta.grants();` as the owner of schema pgmta"
    )
