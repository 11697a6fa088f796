"""
Transactional handlers: what they wrote and what became of their job are both there, or neither is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import sqlalchemy_brooq as brooq
from tests.sides import MakeSide, Side, write
from tests.waiting import eventually

LEVELS = [None, "AUTOCOMMIT", "REPEATABLE READ", "SERIALIZABLE"]
TAKEN = 1000
"""The effect that is there already."""
SECRET = "hush"


class Base(DeclarativeBase):
    pass


class Note(Base):
    __tablename__ = "note"
    n: Mapped[int] = mapped_column(primary_key=True)
    secret: Mapped[str | None]


Deed = Callable[[Session], Any]


class Case(NamedTuple):
    """
    A way in which a handler may go about its transaction after it has written, and what is to come of it.
    """

    deed: Deed
    state: str
    error: str = ""
    """What ``last_error`` begins with."""
    label: str = ""
    """In the metrics; the state's name if not given."""


def broken(session: Session) -> None:
    session.execute(text("SELECT 1/0"))


def taken(session: Session) -> None:
    session.add(Note(n=TAKEN, secret=SECRET))
    session.flush()


def swallowing(deed: Deed) -> Deed:
    def act(session: Session) -> None:
        with contextlib.suppress(Exception):
            deed(session)

    return act


def raising(error: BaseException) -> Deed:
    def act(session: Session) -> None:
        raise error

    return act


def in_savepoint(deed: Deed) -> Deed:
    def act(session: Session) -> None:
        with contextlib.suppress(SQLAlchemyError), session.begin_nested():
            deed(session)

    return act


def in_open_savepoint(deed: Deed) -> Deed:
    def act(session: Session) -> None:
        session.begin_nested()
        with contextlib.suppress(SQLAlchemyError):
            deed(session)

    return act


def then_written(deed: Deed) -> Deed:
    def act(session: Session) -> None:
        deed(session)
        session.execute(text("INSERT INTO note (n) SELECT max(n) + 100 FROM note"))

    return act


def via(way: Callable[[Session], Any], name: str) -> Deed:
    return lambda session: getattr(way(session), name)()


WAYS: dict[str, tuple[Callable[[Session], Any], tuple[str, ...]]] = {
    "session": (lambda session: session, ("commit", "rollback", "close", "reset", "invalidate")),
    "session's transaction": (lambda session: session.get_transaction(), ("commit", "rollback", "close")),
    "connection": (lambda session: session.connection(), ("commit", "rollback", "close", "invalidate")),
    "connection's transaction": (
        lambda session: session.connection().get_transaction(),
        ("commit", "rollback", "close"),
    ),
}
SQL = (
    "COMMIT",
    "rollback",
    " /* so long */ end",
    "-- so long\nABORT WORK",
    "commit and chain",
    "PREPARE TRANSACTION 'x'",
)

CASES: dict[str, Case] = {
    "return": Case(lambda _: None, "done"),
    "its SQL error": Case(broken, "failed", "DataError: division by zero"),
    "its SQL error swallowed": Case(swallowing(broken), "failed", "InternalError: current transaction is aborted"),
    "its SQL error in a savepoint": Case(in_savepoint(broken), "done"),
    "its SQL error in a savepoint left open": Case(in_open_savepoint(broken), "failed", "InternalError: current"),
    "its flush failed": Case(taken, "failed", "IntegrityError: duplicate key value violates unique"),
    "its flush failed, swallowed": Case(swallowing(taken), "failed", "TransactionMisused: a flush failed"),
    "its flush failed, swallowed, and on it goes": Case(then_written(swallowing(taken)), "failed", "PendingRollback"),
    "its flush failed in a savepoint": Case(in_savepoint(taken), "done"),
    "its flush failed in a savepoint left open": Case(in_open_savepoint(taken), "failed", "TransactionMisused: a"),
    "a savepoint left open": Case(in_open_savepoint(lambda session: session.add(Note(n=2000))), "done"),
    "a savepoint of the connection left open": Case(lambda session: session.connection().begin_nested(), "done"),
    "a transaction of its own begun": Case(lambda session: session.begin(), "failed", "InvalidRequestError: A trans"),
    "the session as a context": Case(lambda session: session.__exit__(None, None, None), "failed", "TransactionMis"),
    "it raises": Case(raising(ValueError("no")), "failed", "ValueError: no"),
    "SystemExit": Case(raising(SystemExit(3)), "failed", "SystemExit: 3"),
    "RetryLater": Case(raising(brooq.RetryLater(timedelta(minutes=5))), "failed", "RetryLater"),
    "CancelJob": Case(raising(brooq.CancelJob("off")), "canceled", "CancelJob: off"),
    "PreserveAttempt": Case(raising(brooq.PreserveAttempt("kept")), "failed", "PreserveAttempt: kept", "preserved"),
}
for _name, (_way, _verbs) in WAYS.items():
    for _verb in _verbs:
        CASES[f"{_name}.{_verb}()"] = Case(via(_way, _verb), "failed", "TransactionMisused")
        CASES[f"{_name}.{_verb}(), swallowed"] = Case(swallowing(via(_way, _verb)), "failed", "TransactionMisused")
        CASES[f"{_name}.{_verb}(), swallowed, and on it goes"] = Case(
            then_written(swallowing(via(_way, _verb))), "failed"
        )
for _sql in SQL:
    CASES[_sql] = Case(lambda session, sql=_sql: session.execute(text(sql)), "failed", "TransactionMisused")
"""Each at its place in this table has the effect of its number."""


def run(side: Side, cases: dict[str, Case]) -> dict[str, tuple[Any, ...]]:
    """
    Run *cases* one after the other, an innocent job between any two, and return what came of each.
    """
    with side.engine.begin() as connection:
        connection.execute(text("INSERT INTO note VALUES (:n)"), {"n": TAKEN})
    numbers = {name: n for n, name in enumerate(cases)}
    for name, n in numbers.items():

        def handle(claim: brooq.Claim, session: Session, n: int = n, deed: Deed = cases[name].deed) -> None:
            write(session, n)
            deed(session)

        side.transactional(f"case.{n}", handle)
    side.transactional("innocent", lambda claim, session: write(session, claim.payload))
    side.add(*(job for n in numbers.values() for job in (brooq.Job(f"case.{n}"), brooq.Job("innocent", 500 + n))))
    side.start()
    eventually(lambda: len(side.jobs("innocent")) == len([job for job in side.jobs("innocent") if job.state == "done"]))
    notes = set(side.notes())
    assert {500 + n for n in numbers.values()} <= notes
    found = {}
    for name, n in numbers.items():
        (job,) = side.jobs(f"case.{n}")
        side.reaches(job.id, "done", "failed", "canceled")
        (job,) = side.jobs(f"case.{n}")
        error = job.last_error or ""
        if SECRET not in error:
            error = error[: len(cases[name].error)]
        found[name] = (job.state, error, n in notes, side.labels(f"case.{n}"))
    return found


def expected(cases: dict[str, Case]) -> dict[str, tuple[Any, ...]]:
    return {
        name: (case.state, case.error, case.state == "done", {case.label or case.state: 1})
        for name, case in cases.items()
    }


@pytest.mark.parametrize("level", LEVELS)
def test_whatever_a_handler_does_effect_and_outcome_are_both_there_or_neither_and_the_next_job_is_unharmed(
    make_side: MakeSide, level: str | None
) -> None:
    side = make_side(level=level, workers=1, backoff_base="1h", backoff_max="1h")

    assert run(side, CASES) == expected(CASES)
