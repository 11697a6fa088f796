"""
The shipped revisions as a chain: their names, their order, and the files that do the work.

Runs nothing and reaches no database.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Final

from sqlalchemy_brooq.errors import ConfigError
from sqlalchemy_brooq.schema import REVISIONS

if TYPE_CHECKING:
    from alembic.config import Config

BASE: Final = "base"
"""What alembic calls the state before the first revision."""
HEAD: Final = "head"


def chain_config() -> Config:
    """
    Return alembic's configuration for the environment in this package, which sees all of our revisions.
    """
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", "sqlalchemy_brooq:migrations")
    config.set_main_option("recursive_version_locations", "true")
    return config


def target(to: str) -> str:
    """
    Return the revision that *to* means, or ``"base"``.

    Raises:
        ConfigError: There is no such revision.
    """
    if to == HEAD:
        return REVISIONS[-1]
    if to == BASE or to in REVISIONS:
        return to
    raise ConfigError([f"{to!r} is no revision of this version: {HEAD}, {', '.join(REVISIONS)} or {BASE}"])


def rank(revision: str | None) -> int:
    """
    Return the place of *revision* in the chain; base, and what isn't in it, stand before the first.
    """
    return REVISIONS.index(revision) if revision in REVISIONS else -1


def modules(since: str | None, to: str | None) -> Iterator[ModuleType]:
    """
    Yield the files of the revisions after *since* up to *to*, fresh from the disk; ``None`` is base.
    """
    from alembic.script import ScriptDirectory

    scripts = ScriptDirectory.from_config(chain_config())
    for revision in REVISIONS[rank(since) + 1 : rank(to) + 1]:
        script = scripts.get_revision(revision)
        yield script.module
