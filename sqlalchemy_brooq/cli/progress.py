"""
Progress of long work: on a terminal only, and on stderr, so that what a command answers stays clean.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Final

import click
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from sqlalchemy_brooq.cli.printing import is_terminal
from sqlalchemy_brooq.schema import translated_schema
from sqlalchemy_brooq.statements.schema import index_build

LOOK: Final = 0.3
"""Seconds between looks at what the server is doing."""
_WHOLE: Final = 100


@contextlib.contextmanager
def progress(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """
    Show a bar while the block runs, and lend what moves it to a number of *total*.
    """
    if not is_terminal(sys.stderr):
        yield lambda _done: None
        return
    with click.progressbar(length=total, label=label, file=sys.stderr, show_pos=True) as bar:
        yield lambda done: bar.update(done - bar.pos)


@contextlib.contextmanager
def index_progress(engine: Engine) -> Iterator[None]:
    """
    Show a bar for each index of the table that is built while the block runs, as the server tells of it.

    Args:
        engine: For a connection beside the one that works.
    """
    if not is_terminal(sys.stderr):
        yield
        return
    ended = threading.Event()
    watcher = threading.Thread(target=_watch, args=(engine, ended), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def _watch(engine: Engine, ended: threading.Event) -> None:
    # Only a nicety: where it can't be had, the work goes on without it.
    with contextlib.suppress(SQLAlchemyError), engine.connect() as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT")
        while not ended.wait(LOOK):
            _show_build(connection, ended)


def _show_build(connection: Connection, ended: threading.Event) -> None:
    """
    Show how an index is built, if one is, until it is there.
    """
    statement = index_build(translated_schema(connection))
    row = connection.execute(statement).first()
    if row is None:
        return
    with click.progressbar(length=_WHOLE, label="building an index", file=sys.stderr) as bar:
        while row is not None:
            bar.label = f"building an index ({row.phase})"
            bar.update(_WHOLE * row.done // max(row.total, 1) - bar.pos)
            bar.render_progress()
            if ended.wait(LOOK):
                return
            row = connection.execute(statement).first()
