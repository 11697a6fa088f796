"""
Recording what was sent to the server, and what producers told their process.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Engine, Row, event, text

from sqlalchemy_brooq.commits import EnqueuedNote, subscribe


@contextmanager
def recorded(engine: Engine) -> Iterator[list[str]]:
    """
    Collect the statements that are sent over *engine*.
    """
    statements: list[str] = []

    def note(*arguments: Any) -> None:
        statements.append(arguments[2])

    event.listen(engine, "before_cursor_execute", note)
    try:
        yield statements
    finally:
        event.remove(engine, "before_cursor_execute", note)


@contextmanager
def noted() -> Iterator[list[EnqueuedNote]]:
    """
    Collect what this process's commits tell.
    """
    notes: list[EnqueuedNote] = []
    unsubscribe = subscribe(notes.append)
    try:
        yield notes
    finally:
        unsubscribe()


def jobs(engine: Engine) -> list[Row[Any]]:
    """
    Return the committed jobs in the order in which their objects were built.
    """
    with engine.connect() as connection:
        return list(connection.execute(text("SELECT * FROM job ORDER BY id")))
