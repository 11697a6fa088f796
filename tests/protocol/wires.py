"""
What is disturbed: connections and sessions whose answers get lost on the way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum, auto
from typing import Any

import psycopg
from sqlalchemy import Connection, Engine, Executable
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from sqlalchemy_brooq.worker.connection import PrivateConnection, Rows


class Fault(Enum):
    """
    How an answer gets lost.
    """

    BEFORE = auto()
    """The statement ran, and was rolled back."""
    AFTER = auto()
    """It committed."""
    LATE = auto()
    """The server still has it: it commits, or not, while the worker goes on."""


class AnswerLost(OperationalError):
    def __init__(self) -> None:
        super().__init__("(a statement)", None, psycopg.OperationalError("the answer was lost"))


class Wire(PrivateConnection):
    """
    An engine's own connection, which loses answers as planned.
    """

    def __init__(self, engine: Engine, stock: list[Wire]) -> None:
        super().__init__(engine)
        self._stock = stock
        self._used_for_rows = False
        self._plan: deque[Fault | None] = deque()
        self.late: Connection | None = None
        """The transaction of the statement whose answer was lost last, if it is still open."""
        self.lost: Mapping[str, Any] = {}
        """That statement's parameters."""

    @contextmanager
    def losing(self, fault: Fault | None, after: int = 0) -> Iterator[None]:
        """
        Lose the answer of the statement after the next *after* ones.
        """
        self._plan, self.late, self.lost = deque([*[None] * after, fault]), None, {}
        try:
            yield
        finally:
            self._plan.clear()

    def rows(self, statement: Executable, parameters: Mapping[str, Any], *, limit: float) -> Rows:
        self._used_for_rows = True
        fault = self._plan.popleft() if self._plan else None
        if fault is None:
            return super().rows(statement, parameters, limit=limit)
        connection = self._engine.connect()
        try:
            transaction = connection.begin()
            connection.execute(statement, parameters).all()
        except BaseException:
            connection.close()
            raise
        self.lost = parameters
        if fault is Fault.LATE:
            self.late = connection
        else:
            transaction.commit() if fault is Fault.AFTER else transaction.rollback()
            connection.close()
        raise AnswerLost

    @contextmanager
    def transaction(self, *, limit: float) -> Iterator[Connection]:
        if self._used_for_rows:  # by the worker that had it before: a worker's own connection serves one kind of use
            self.drop()
            self._used_for_rows = False
        with super().transaction(limit=limit) as connection:
            yield connection

    def close(self) -> None:
        """
        Let the next worker have it: connecting takes longer than a step does.
        """
        self._stock.append(self)


class LosingSession(Session):
    """
    A consumer's session whose commits may go unanswered.
    """

    fault: Fault | None = None

    def commit(self) -> None:
        if self.fault is Fault.BEFORE:
            self.rollback()
        else:
            super().commit()
        if self.fault is not None:
            raise AnswerLost
