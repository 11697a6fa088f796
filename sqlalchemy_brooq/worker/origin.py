"""
Where the worker's connections come from when the consumer's engine can't give them.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import Engine, create_engine
from sqlalchemy.ext.asyncio import AsyncEngine

from sqlalchemy_brooq.private import json_deserializer, json_serializer

DRIVER: Final = "psycopg"
CARRIED: Final = ("schema_translate_map",)
"""Execution options that name what a statement is about, not how a transaction behaves."""


def needs_derived(engine: Engine) -> bool:
    """
    Tell whether *engine* has another driver than the worker needs.
    """
    return engine.dialect.driver != DRIVER


def derived_engine(engine: Engine | AsyncEngine, *, plain: bool = False) -> Engine:
    """
    Return a plain psycopg engine for the same database, made from the URL alone.

    ``connect_args``, listeners and the pool's settings of *engine* can't be carried over.

    Args:
        engine: Whose database.
        plain: Use nothing of the session's state, as behind a transaction pooler.
    """
    source = engine.sync_engine if isinstance(engine, AsyncEngine) else engine
    options: dict[str, Any] = {
        "json_serializer": json_serializer(source.dialect),
        "json_deserializer": json_deserializer(source.dialect),
    }
    if plain:
        options["connect_args"] = {"prepare_threshold": None}
    derived = create_engine(source.url.set(drivername=f"postgresql+{DRIVER}"), **options)
    carried = {name: value for name, value in source.get_execution_options().items() if name in CARRIED}
    return derived.execution_options(**carried) if carried else derived
