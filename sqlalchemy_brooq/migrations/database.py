"""
The database that a migration is given: an engine, or an address in one of its spellings.
"""

from __future__ import annotations

from sqlalchemy import Engine, NullPool, create_engine, make_url
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError

from sqlalchemy_brooq.errors import ConfigError


def database_url(value: str | URL) -> URL:
    """
    Return *value* as a URL that names psycopg, where it names no driver; ``postgres://`` is understood.

    Raises:
        ConfigError: It can't be read, or leads to another dialect. The text isn't shown: it may hold a password.
    """
    try:
        url = make_url(value)
    except (ArgumentError, ValueError):
        raise ConfigError(
            ["the database URL can't be read: write it like postgresql://user:password@host:5432/database"]
        ) from None
    if url.drivername in ("postgres", "postgresql"):
        return url.set(drivername="postgresql+psycopg")
    if url.get_backend_name() != "postgresql":
        raise ConfigError([f"the database URL names {url.drivername!r}: sqlalchemy-brooq works on postgresql alone"])
    return url


def engine_of(database: Engine | URL | str) -> Engine:
    """
    Return the caller's engine, or one for the URL, which keeps no connection open.
    """
    if isinstance(database, Engine):
        if database.dialect.name != "postgresql":
            raise ConfigError([f"the engine's dialect is {database.dialect.name!r}: it has to be postgresql"])
        return database
    if not isinstance(database, URL | str):
        raise ConfigError([f"migrate takes an Engine or a URL, not {type(database).__name__}: give it engine.url"])
    engine = create_engine(database_url(database), poolclass=NullPool)
    if engine.dialect.is_async:
        raise ConfigError([f"the driver {engine.driver} is asynchronous: use postgresql+psycopg for migrations"])
    return engine
