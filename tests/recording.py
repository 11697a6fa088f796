"""
Recording what was sent to the server, and what producers told their process and others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from sqlalchemy import URL, Engine, Row, event, text

from sqlalchemy_brooq.commits import EnqueuedNote, subscribe
from sqlalchemy_brooq.vocabulary import CHANNEL

Heard = Callable[[], list[str]]


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


@contextmanager
def listening(url: URL) -> Iterator[Heard]:
    """
    Listen as a worker would; the function returns what has come since it was last called.
    """
    conninfo = url.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(f"LISTEN {CHANNEL}")

        def heard() -> list[str]:
            connection.execute(f"NOTIFY {CHANNEL}, 'end of what was sent before'")
            messages: list[str] = []
            for notification in connection.notifies(timeout=10):
                if notification.payload == "end of what was sent before":
                    break
                messages.append(notification.payload)
            return messages

        yield heard
