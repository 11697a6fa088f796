"""
One connection that many have for themselves: each one's transaction is a savepoint in the transaction of a test.

Speaks the DBAPI on both sides, so that everything above it, SQLAlchemy's pools and sessions and the engine itself,
runs as it does in production. Knows no job.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import re
from collections.abc import Callable
from typing import Any, Final

from sqlalchemy_brooq.errors import LifecycleError
from sqlalchemy_brooq.private import WRAPPED

log = logging.getLogger("sqlalchemy_brooq.testing")

_numbers: Final = itertools.count(1)
"""Of savepoints: a name is used once in a process, so that nobody's is mistaken for another's."""

UNDONE: Final = (
    "a transaction was rolled back, and with it what others have committed since it began: in a test all share one"
    " connection, and their transactions are savepoints, each within those that were begun before it"
)
GONE: Final = (
    "this transaction is gone: one that began before it was rolled back; in a test all share one connection, and their"
    " transactions are savepoints, each within those that were begun before it"
)
FAILED: Final = "current transaction is aborted, commands ignored until end of transaction block"
"""PostgreSQL's own words."""
READ: Final = re.compile(r"\s*(?:SELECT|SHOW|VALUES|TABLE)\b(?!.*\bINTO\b)", re.IGNORECASE | re.DOTALL)
"""What writes nothing, as a rule: a function may."""
AUTOCOMMIT: Final = (0, "autocommit", "AUTOCOMMIT")
"""What drivers are told where each statement is to commit itself."""


class WorkerCrashed(BaseException):
    """
    Stands for the end of a worker's process, on a fault that a test asked for. It never leaves the kit.
    """


class Savepoint:
    """
    One savepoint of the test's transaction.
    """

    __slots__ = ("has_others", "is_abandoned", "is_failed", "is_gone", "is_over", "name")

    def __init__(self) -> None:
        self.name = f"brooq_{next(_numbers)}"
        self.is_over = False
        """Committed; it stays until those that were begun after it have ended."""
        self.is_abandoned = False
        """To be rolled back as soon as the connection may be used: whoever had it went without a word."""
        self.is_gone = False
        """Rolled back, by its owner or with one that was begun before it."""
        self.is_failed = False
        """Rolled back ahead of its owner, who can do nothing else with it after an error."""
        self.has_others = False
        """Whether others have committed within it."""


class Shared:
    """
    The connection of a test, and the savepoints that are open in its transaction.

    Args:
        driver: The DBAPI's connection.
    """

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        self.is_cut = False
        """Whether nothing gets through any more, because a worker has crashed."""
        self.committed: Callable[[], None] = lambda: None
        """Is called after each commit."""
        self._stack: list[Savepoint] = []

    def savepoint(self) -> Savepoint:
        """
        Set a savepoint.

        After an error PostgreSQL takes none, before the transaction that met it is rolled back. That is what will
        become of it anyway, and meanwhile others go on.
        """
        self._clear()
        savepoint = Savepoint()
        while True:
            try:
                self._run(f"SAVEPOINT {savepoint.name}")
            except Exception:
                if not self._stack:
                    raise
                failed = self._stack[-1]
                self.roll_back(failed)
                failed.is_failed = True
            else:
                self._stack.append(savepoint)
                return savepoint

    def renewed(self, savepoint: Savepoint) -> Savepoint:
        """
        Return a savepoint that others have committed before, not within, where that can be; nothing was written since.
        """
        if not savepoint.has_others or self._stack[-1] is not savepoint:
            return savepoint
        self.commit(savepoint)
        return self.savepoint()

    def depth(self) -> int:
        """
        Return how many savepoints are open.
        """
        return len(self._stack)

    def unwind(self, depth: int) -> None:
        """
        Roll back whatever is still open beyond the first *depth* savepoints, as a server does when a client is gone.
        """
        for savepoint in self._stack[depth:]:
            if not savepoint.is_over:
                self.roll_back(savepoint)
                return

    def commit(self, savepoint: Savepoint) -> None:
        """
        Keep what was written since; in a transaction that has failed it is a rollback, as PostgreSQL's COMMIT is.
        """
        if savepoint.is_failed:
            return
        if savepoint.is_gone:
            raise LifecycleError(GONE)
        savepoint.is_over = True
        over = list(itertools.takewhile(lambda one: one.is_over, reversed(self._stack)))
        if not over:
            return
        try:
            self._run(f"RELEASE SAVEPOINT {over[-1].name}")
        except Exception:  # noqa: BLE001 - drivers have no root of errors in common; one that is gone fails again
            self.roll_back(savepoint)
            return
        del self._stack[-len(over) :]
        if self._stack:
            self._stack[-1].has_others = True

    def roll_back(self, savepoint: Savepoint, *, quietly: bool = False) -> None:
        """
        Undo what was written since; say so if others have written it, unless that is meant.
        """
        if savepoint.is_gone:
            return
        place = self._stack.index(savepoint)
        self._run(f"ROLLBACK TO SAVEPOINT {savepoint.name}")
        self._run(f"RELEASE SAVEPOINT {savepoint.name}")
        for one in self._stack[place:]:
            one.is_gone = True
        if not quietly and any(one.has_others or one.is_over for one in self._stack[place:]):
            log.warning(UNDONE)
        del self._stack[place:]

    def end(self, savepoint: Savepoint) -> None:
        """
        Let go of one that has nothing to be undone.
        """
        if not savepoint.is_gone:
            self.commit(savepoint)

    def _clear(self) -> None:
        for savepoint in list(self._stack):
            if savepoint.is_abandoned:
                self.roll_back(savepoint)

    def _run(self, sql: str) -> None:
        # The driver's own cursor: a statement of SQLAlchemy's would be seen, and counted, as one of a session's.
        with contextlib.closing(self.driver.cursor()) as cursor:
            cursor.execute(sql)


class Share:
    """
    What a pool takes for a connection: its transactions are savepoints on the shared one.

    Begins one with its first statement, as a driver does. One that has only read has nothing to roll back, and so
    takes nobody with it. Settings of a transaction, such as its isolation level, are taken and have no effect: the
    test's transaction has its own.
    """

    __slots__ = ("_cursors", "_has_written", "_savepoint", "autocommit", "shared")

    def __init__(self, shared: Shared) -> None:
        self.shared = shared
        self._savepoint: Savepoint | None = None
        self._has_written = False
        self._cursors = 0
        self.autocommit = False

    def __getattr__(self, name: str) -> Any:
        driver = self.shared.driver
        if name == WRAPPED:  # what an async dialect has wrapped; a plain driver's is wrapped in nothing
            return getattr(driver, name, driver)
        return getattr(driver, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__slots__:
            object.__setattr__(self, name, value)

    def set_isolation_level(self, level: Any) -> None:
        """
        Take note where each statement is to commit itself; otherwise the test's transaction keeps its level.
        """
        if level is not None:  # otherwise `autocommit` was set before
            self.autocommit = level in AUTOCOMMIT

    def set_autocommit(self, value: bool) -> None:
        """
        Let each statement commit itself, or not.
        """
        self.autocommit = value

    def cursor(self, *arguments: Any, **options: Any) -> Any:
        """
        Return a cursor of the shared connection, within this one's transaction.
        """
        self._check()
        if self.autocommit:
            self.commit()
        self.begin()
        self._cursors += 1
        return self.shared.driver.cursor(*arguments, **options)

    def begin(self) -> None:
        """
        Begin a transaction, unless one is under way.
        """
        gone = self._savepoint
        if gone is not None and gone.is_gone and (gone.is_failed or not self._has_only_read):
            raise LifecycleError(FAILED if gone.is_failed else GONE)
        if gone is None or gone.is_gone:
            self._savepoint = self.shared.savepoint()
            self._has_written, self._cursors = False, 0

    def sending(self, statement: str) -> None:
        """
        Take note that *statement* is about to be sent, by a cursor of this one.
        """
        self._cursors -= 1
        if self._has_written or READ.match(statement):
            return
        self._has_written = True
        if self._savepoint is not None:
            self._savepoint = self.shared.renewed(self._savepoint)

    def commit(self) -> None:
        """
        Commit, as far as that goes within a test.
        """
        self._check()
        savepoint, self._savepoint = self._savepoint, None
        if savepoint is not None:
            self.shared.commit(savepoint)
            self.shared.committed()

    def rollback(self) -> None:
        """
        Roll back.
        """
        savepoint, self._savepoint = self._savepoint, None
        if savepoint is None:
            return
        if self._has_only_read or (self.autocommit and not self.shared.is_cut):
            self.shared.end(savepoint)
        else:
            self.shared.roll_back(savepoint)

    def close(self) -> None:
        """
        Roll back what is open, and go; the shared connection stays.
        """
        self.rollback()

    def terminate(self) -> None:
        """
        Go without a word: it may be called where the connection can't be used.
        """
        savepoint, self._savepoint = self._savepoint, None
        if savepoint is not None:
            savepoint.is_abandoned = True

    @property
    def _has_only_read(self) -> bool:
        # A cursor that SQLAlchemy has not used has sent who knows what.
        return not self._has_written and self._cursors <= 0

    def _check(self) -> None:
        if self.shared.is_cut:
            raise WorkerCrashed
