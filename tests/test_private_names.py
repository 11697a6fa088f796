"""
The names of SQLAlchemy and alembic that they don't publish: all in one module, and all in what is installed.

A release that renames one fails here, with the name, before it fails anywhere with something stranger.
"""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from alembic.autogenerate.api import AutogenContext
from alembic.migration import MigrationContext
from sqlalchemy import URL, Engine, MetaData, create_engine, event
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

from sqlalchemy_brooq import Job, private
from tests.pages import table
from tests.servers import ROOT

PACKAGE: Final = ROOT / "sqlalchemy_brooq"
PUBLISHED: Final = frozenset({"_asdict", "_exit", "_fields", "_getframe", "_mapping", "_replace"})
"""Public in spite of their first letter: of named tuples, ``os`` and ``sys``, and of SQLAlchemy's rows."""


def private_names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name) if name.startswith("_") and not name.startswith("__"):
                yield name
            case ast.Call(func=ast.Name(id="getattr" | "hasattr"), args=[_, ast.Constant(value=str(name)), *_]):
                if name.startswith("_") and not name.startswith("__"):
                    yield name


def own_names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name), *_]):
                yield name
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name):
                yield name


def test_only_one_module_reads_what_others_keep_to_themselves() -> None:
    trees = {path: ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py")}
    known = PUBLISHED.union(*map(own_names, trees.values()))

    foreign = {(path.name, name) for path, tree in trees.items() for name in private_names(tree) if name not in known}

    assert foreign == {("private.py", name) for name in ("_flushing", "_json_serializer", "_json_deserializer")}


def test_each_such_name_is_in_the_reference() -> None:
    tree = ast.parse(Path(private.__file__).read_text())
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    names = {*private_names(tree), *(text for text in texts if text.startswith("_"))}

    rows = table(ROOT / "docs/reference/compatibility.md", "name")

    assert sorted(name for row in rows for name in row[0].split(", ")) == sorted(f"`{name}`" for name in names)


def test_a_session_tells_that_it_is_flushing(session: Session) -> None:
    told = []

    event.listen(session, "before_flush", lambda session, *_: told.append(private.is_flushing(session)))
    session.add(Job("mail"))
    session.flush()

    assert told == [True]
    assert not private.is_flushing(session)


@pytest.mark.parametrize("driver", ["psycopg", "psycopg_async", "psycopg2", "asyncpg"])
def test_a_dialect_tells_how_its_engine_was_to_write_and_read_json(driver: str) -> None:
    make = create_async_engine if driver in {"psycopg_async", "asyncpg"} else create_engine
    plain = make(f"postgresql+{driver}://")
    special = make(f"postgresql+{driver}://", json_serializer=ascii, json_deserializer=len)

    assert (private.json_serializer(special.dialect), private.json_deserializer(special.dialect)) == (ascii, len)
    assert (private.json_serializer(plain.dialect), private.json_deserializer(plain.dialect)) == (None, None)


def test_an_object_holds_its_values_and_one_thing_of_sqlalchemy_s() -> None:
    job = Job("mail", {"to": 7})

    assert {name for name in vars(job) if name.startswith("_")} == {private.INSTANCE_STATE}


def test_an_async_stand_in_keeps_the_driver_s_own_connection(async_engine_url: URL) -> None:
    async def look() -> tuple[object, object]:
        engine = create_async_engine(async_engine_url)
        async with engine.connect() as connection:
            pooled = await connection.get_raw_connection()
            found = getattr(pooled.dbapi_connection, private.WRAPPED), pooled.driver_connection
        await engine.dispose()
        return found

    kept, own = asyncio.run(look())

    assert kept is own


def test_alembic_keeps_its_filters_where_we_look(engine: Engine) -> None:
    with engine.connect() as connection:
        context = AutogenContext(MigrationContext.configure(connection), MetaData())

        assert isinstance(getattr(context, private.FILTERS), list)
