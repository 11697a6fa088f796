"""
What a story is told with: asking the database, waiting until something is so, and saying what is being waited for.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from sqlalchemy import Engine, text

from sqlalchemy_brooq.demo.account import Account
from sqlalchemy_brooq.demo.crew import Crew
from sqlalchemy_brooq.demo.interrupts import Interrupts

TIME_LIMIT: Final = 45.0
"""Seconds after which nothing is waited for any more; what isn't so by then shows in the summary."""
PATIENCE: Final = 15.0
"""Seconds for one thing to happen."""

_LOOK: Final = 0.05
_TELL: Final = 1.0

T = TypeVar("T")


class Stage:
    """
    The account, the database and the workers of a run.
    """

    def __init__(self, account: Account, engine: Engine, crew: Crew, interrupts: Interrupts) -> None:
        self.account = account
        self.engine = engine
        self.crew = crew
        self.interrupts = interrupts

    def show(self, statement: str) -> None:
        """
        Show a statement and its answer.
        """
        self.account.ask(self.engine, statement)

    def scalar(self, statement: str, **parameters: object) -> Any:
        """
        Return the one value that *statement* answers with.
        """
        with self.engine.connect() as connection:
            return connection.scalar(text(statement), parameters)

    def column(self, statement: str, **parameters: object) -> list[Any]:
        """
        Return the first column of what *statement* answers with.
        """
        with self.engine.connect() as connection:
            return list(connection.scalars(text(statement), parameters))

    def until(self, ask: Callable[[], T], progress: Callable[[], str] | None = None, patience: float = PATIENCE) -> T:
        """
        Wait until *ask* returns something true, and return its last value: false if that took too long.

        The *progress* is told each second.

        Raises:
            Stopped: A signal came.
            WorkerFailed: A worker ended by itself.
        """
        began = told = time.monotonic()
        while not (value := ask()):
            self.interrupts.check()
            self.crew.check()
            now = time.monotonic()
            if now - began > patience or self.account.elapsed > TIME_LIMIT:
                if progress is not None:
                    self.account.say(f"Not waiting any longer: {progress()}")
                return value
            if progress is not None and now - told > _TELL:
                self.account.say(f"... {progress()}")
                told = now
            time.sleep(_LOOK)
        return value

    def until_quiet(self) -> None:
        """
        Wait until every job is over.
        """
        self.until(lambda: self.scalar(UNFINISHED) == 0, self._how_far)

    def _how_far(self) -> str:
        total, unfinished = self.scalar("SELECT count(*) FROM job"), self.scalar(UNFINISHED)
        return f"{total - unfinished} of {total} jobs are over"


UNFINISHED: Final = "SELECT count(*) FROM job WHERE state IN ('pending', 'processing', 'failed')"
