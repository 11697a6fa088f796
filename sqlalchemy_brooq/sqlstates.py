"""
Why the server refused a statement, by its SQLSTATE: the codes that this package tells apart.

The codes stay when the server's texts are of another language, or of another version.
"""

from __future__ import annotations

from typing import Final

DATA_EXCEPTION: Final = "22"
"""The class of what a type can't hold."""
INSUFFICIENT_PRIVILEGE: Final = "42501"
DEADLOCK_DETECTED: Final = "40P01"
LOCK_NOT_AVAILABLE: Final = "55P03"
"""A lock didn't come within ``lock_timeout``."""
QUERY_CANCELED: Final = "57014"
"""Also what ``statement_timeout`` ends with."""

OUTAGES: Final = ("08", "53", "55", "57", "58")
"""The classes of what time may mend: no connection, no resources, somebody in the way, an operator, the system."""

BLOCKED: Final = frozenset({LOCK_NOT_AVAILABLE, DEADLOCK_DETECTED})
"""Somebody else was in the way, and may be gone the next time."""


def sqlstate(error: BaseException) -> str | None:
    """
    Return the SQLSTATE that *error*, an exception of SQLAlchemy's, brings from the server; ``None``: it brings none.
    """
    original = getattr(error, "orig", None)
    # psycopg2 calls it by another name than everybody else.
    found: str | None = getattr(original, "sqlstate", None) or getattr(original, "pgcode", None)
    return found
