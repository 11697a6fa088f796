"""
What we read of SQLAlchemy and alembic that they don't publish, since nothing public tells it.

Owns each such name, so that a release that renames one is answered here; a test looks for each of them in what is
installed. No other module has an access to a private name of theirs. Knows nothing of ours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from sqlalchemy import Dialect
from sqlalchemy.orm import Session

INSTANCE_STATE: Final = "_sa_instance_state"
"""Under it, an object's ``__dict__`` keeps what SQLAlchemy knows of the object, beside the object's own values."""

WRAPPED: Final = "_connection"
"""Under it, an async dialect's stand-in for a DBAPI connection keeps the driver's own."""

FILTERS: Final = "_object_filters"
"""Under it, alembic's `AutogenContext` keeps the list of what its environment leaves out of a comparison."""


def is_flushing(session: Session) -> bool:
    """
    Whether a flush of *session* is running; another one can't be begun in it.
    """
    return session._flushing  # noqa: SLF001 - see above


def json_serializer(dialect: Dialect) -> Callable[[Any], str] | None:
    """
    Return the engine's ``json_serializer``; SQLAlchemy's own JSON types read it from the same place.
    """
    return getattr(dialect, "_json_serializer", None)


def json_deserializer(dialect: Dialect) -> Callable[[Any], Any] | None:
    """
    Return the engine's ``json_deserializer``, from beside the serializer.
    """
    return getattr(dialect, "_json_deserializer", None)
