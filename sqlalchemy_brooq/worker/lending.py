"""
Lends a session to a handler or a callback, which may do anything with it but end its transaction.

Owns how that is refused, and how a session is let go, whatever state it was left in. Knows no claim and no outcome.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any, Final

from sqlalchemy import Connection, Transaction, TwoPhaseTransaction, event, inspect
from sqlalchemy.orm import Session, SessionTransaction

from sqlalchemy_brooq.book import existing_book
from sqlalchemy_brooq.errors import TransactionMisused
from sqlalchemy_brooq.model import Job
from sqlalchemy_brooq.policy import error_text
from sqlalchemy_brooq.private import is_flushing
from sqlalchemy_brooq.worker.connection import READ_COMMITTED, break_off
from sqlalchemy_brooq.worker.log import log

COMMITS: Final = {False: ("commit",), True: ("prepare_twophase", "commit_twophase")}
ROLLBACK: Final = {False: "rollback", True: "rollback_twophase"}
"""The events of a connection; whether its transaction is a two-phase one decides."""
ENDING: Final = re.compile(
    r"(?:\s|--[^\n]*+|/\*(?:[^*]|\*(?!/))*+\*/)*+"
    r"(?:commit|end|abort|prepare\s+transaction|rollback(?!\s+(?:(?:work|transaction)\s+)?to\b))\b",
    re.IGNORECASE,
)
"""SQL that ends a transaction; going back to a savepoint does not."""
ENDED: Final = (
    "the transaction that was lent is not the borrower's to end: return to commit it, raise to roll it back, and"
    " use session.begin_nested() for a part that may fail"
)
FLUSH_FAILED: Final = (
    "a flush failed, and what was written was rolled back with it; to go on all the same, put what may fail"
    " into `with session.begin_nested():`"
)
LOST: Final = "the connection that was lent is gone, and what was written with it"


class Loan:
    """
    A session with a transaction of ours on the jobs' database; for an `AsyncSession`, made and used by ``run_sync``.

    Every way to end a transaction, by the session, its connection or the transaction objects of either, comes down to
    the connection's events. That is where it is refused.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.connection: Connection
        self._root: SessionTransaction | None = None
        self._transaction: Transaction | None = None
        self._driver: Any = None
        self._listening = False
        self._lent = False
        self._doubtful = False

    def begin(self) -> None:
        """
        Connect, and begin the transaction; PostgreSQL hears of it with the first statement.

        Ours among several binds, at a level that is named: under REPEATABLE READ the fence would meet every
        heartbeat of the meantime as a serialization failure.
        """
        if not self.session.in_transaction():
            self.session.begin()  # a consumer's sessionmaker may have autobegin=False
        self.connection = self.session.connection(
            bind_arguments={"mapper": inspect(Job)}, execution_options={"isolation_level": READ_COMMITTED}
        )
        self._driver = self.connection.connection.driver_connection
        self._root = self.session.get_transaction()
        self._transaction = self.connection.get_transaction()

    @contextlib.contextmanager
    def lent(self) -> Iterator[None]:
        """
        Refuse to end the transaction for as long as a handler, or a callback, has the session.

        Raises:
            TransactionMisused: It was ended all the same: by a refusal that was ignored, or by a failed flush.
        """
        self._listen()
        self._lent = True
        try:
            yield
        finally:
            self._lent = False
        self._check()

    def finish(self) -> None:
        """
        Send what the session still holds back, so that the commit itself has nothing left to write.
        """
        while (savepoint := self.session.get_nested_transaction()) is not None:
            savepoint.commit()  # the handler left it open
        self.session.flush()
        if (book := existing_book(self.session)) is not None:
            book.announcing = True
            book.announce(self.session)

    def commit(self) -> None:
        """
        Commit.
        """
        try:
            self.session.commit()
        except BaseException:
            self._doubtful = True
            raise

    def let_go(self) -> None:
        """
        Roll back what was not committed, and give the connection back; one in a doubtful state is thrown away.

        Given back after a refused commit, the connection would keep its transaction for whoever takes it next.
        """
        try:
            if self._doubtful:
                self.session.invalidate()
            else:
                self.session.close()
        except Exception as error:  # noqa: BLE001 - it broke, so that the server rolls back; no outcome changes with that
            log.warning("a session could not be closed, its connection is dropped: %s", error_text(error))
            self._doubtful = True
        if self._doubtful and self._transaction is not None and not self.connection.closed:
            with contextlib.suppress(Exception):
                self.connection.invalidate()
            with contextlib.suppress(Exception):
                self.connection.close()

    def break_off(self) -> bool:
        """
        End a statement that gets no answer; from another thread. False where the driver shows no socket.
        """
        return break_off(self._driver)

    def _listen(self) -> None:
        if self._listening:
            return
        self._listening = True
        kind = isinstance(self._transaction, TwoPhaseTransaction)
        for name in COMMITS[kind]:
            event.listen(self.connection, name, self._on_commit)
        event.listen(self.connection, ROLLBACK[kind], self._on_rollback)
        event.listen(self.connection, "before_cursor_execute", self._on_statement)

    def _check(self) -> None:
        session, transaction = self.session, self._transaction
        same = session.get_transaction() is self._root
        if same and not session.is_active:
            raise TransactionMisused(FLUSH_FAILED)
        active = transaction is not None and transaction.is_active
        if not (same and active and self.connection.get_transaction() is transaction):
            self._doubtful = True
            raise TransactionMisused(ENDED)
        if self.connection.invalidated:
            raise TransactionMisused(LOST)

    def _on_commit(self, *_: Any) -> None:
        self._refuse()

    def _on_rollback(self, *_: Any) -> None:
        if not is_flushing(self.session):  # one that fails rolls back by itself, and raises
            self._refuse()

    def _on_statement(self, _connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if self._lent and ENDING.match(statement):
            raise TransactionMisused(ENDED)

    def _refuse(self) -> None:
        if self._lent:
            self._doubtful = True
            raise TransactionMisused(ENDED)
