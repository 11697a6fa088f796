"""
Transactional handlers: what they wrote and what became of their job are both there, or neither is.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

import psycopg
import pytest
from sqlalchemy import Connection, Engine, event, text
from sqlalchemy.exc import OperationalError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

import sqlalchemy_brooq as brooq
from tests.sides import PATIENCE, MakeSide, Side, write
from tests.waiting import eventually, row

LEVELS = [None, "AUTOCOMMIT", "REPEATABLE READ", "SERIALIZABLE"]
TAKEN = 1000
"""The effect that is there already."""
SECRET = "hush"  # noqa: S105 - one that must not be told


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


def _execute(sql: str, session: Session) -> None:
    session.execute(text(sql))


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
    CASES[_sql] = Case(partial(_execute, _sql), "failed", "TransactionMisused")
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
    # A hundred and forty jobs, one after the other: on a busy machine that is a matter of a minute.
    eventually(
        lambda: len(side.jobs("innocent")) == len([job for job in side.jobs("innocent") if job.state == "done"]), 90.0
    )
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

    eventually(lambda: side.sync_engine.pool.checkedout() == 0)  # type: ignore[attr-defined] # a QueuePool
    eventually(lambda: side.scalar(IDLE) == 0)


only_async = pytest.mark.parametrize("make_side", ["async"], indirect=True)
only_plain = pytest.mark.parametrize("make_side", ["plain"], indirect=True)
IDLE = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in tr%'"


@only_async
@pytest.mark.parametrize("swallowed", [False, True])
def test_an_async_session_refuses_to_end_its_transaction_as_well(make_side: MakeSide, *, swallowed: bool) -> None:
    side = make_side(workers=1, backoff_base="1h", backoff_max="1h")
    deeds: dict[str, Callable[[AsyncSession], Any]] = {
        "commit": lambda session: session.commit(),
        "rollback": lambda session: session.rollback(),
        "close": lambda session: session.close(),
        "context": lambda session: session.__aexit__(None, None, None),
        "transaction": lambda session: session.get_transaction().commit(),  # type: ignore[union-attr]
        "connection": _connection_committed,
    }

    @side.queue.handler("t", transactional=True)
    async def handle(claim: brooq.Claim, session: AsyncSession) -> None:
        await session.execute(text("INSERT INTO note VALUES (1)"))
        with contextlib.suppress(*([Exception] if swallowed else [])):
            await deeds[claim.payload](session)

    ids = side.add(*(brooq.Job("t", name) for name in deeds))
    side.start()

    for job_id in ids:
        assert side.reaches(job_id, "failed", "done")["last_error"].startswith("TransactionMisused")
    assert side.notes() == []
    assert side.labels("t") == {"failed": len(deeds)}


async def _connection_committed(session: AsyncSession) -> None:
    await (await session.connection()).commit()


def test_no_transaction_is_open_before_the_handler_begins_to_write(make_side: MakeSide) -> None:
    side = make_side()
    running, go_on = threading.Event(), threading.Event()

    def handle(_: brooq.Claim, session: Session) -> None:
        running.set()
        side.wait(go_on)
        write(session, 1)

    side.transactional("t", handle)
    (job_id,) = side.add(brooq.Job("t"))
    side.start()

    assert running.wait(PATIENCE)
    eventually(lambda: side.scalar(IDLE) == 0)  # the engine's own transactions are short
    go_on.set()
    side.reaches(job_id, "done")


def test_the_fence_is_the_last_statement_before_the_commit(make_side: MakeSide) -> None:
    side = make_side(level="AUTOCOMMIT")
    last: dict[Any, str] = {}
    at_the_end: list[str] = []
    event.listen(
        side.sync_engine,
        "before_cursor_execute",
        lambda connection, _cursor, statement, *_: last.__setitem__(connection, statement),
    )
    event.listen(side.sync_engine, "commit", lambda connection: at_the_end.append(last.get(connection, "")))

    def handle(claim: brooq.Claim, session: Session) -> None:
        session.begin_nested()
        session.add_all([Note(n=1), brooq.Job("added", idempotency_key="a")])
        claim.chain(brooq.Job("chained"), brooq.Job("chained", idempotency_key="b"))

    side.transactional("t", handle)
    (job_id,) = side.add(brooq.Job("t"))
    side.start()

    side.reaches(job_id, "done")
    assert side.notes() == [1]
    assert [len(side.jobs(topic)) for topic in ("added", "chained")] == [1, 2]
    (ours,) = [statement for statement in at_the_end if "INSERT INTO note" in statement or "outcome" in statement]
    assert "UPDATE job SET" in ours


def test_a_slot_that_a_transactional_handler_frees_is_filled_at_once(make_side: MakeSide) -> None:
    side = make_side(workers=1, poll_interval="30s")
    side.transactional("t", lambda claim, session: write(session, claim.payload))
    side.add(*(brooq.Job("t", n) for n in range(20)))

    side.start()

    eventually(lambda: side.notes() == list(range(20)))


# -- while it runs


class Meanwhile:
    """
    One transactional job whose handler has had its effect, and now waits for the test.
    """

    def __init__(self, side: Side, **options: Any) -> None:
        self.side = side
        self.running, self.go_on, self.over = threading.Event(), threading.Event(), threading.Event()
        side.transactional("t", self._handle, **options)
        side.transactional("innocent", lambda _, session: write(session, 2))
        side.start()  # before the handler may block the loop
        (self.job_id,) = side.add(brooq.Job("t"))
        assert self.running.wait(PATIENCE)

    def _handle(self, claim: brooq.Claim, session: Session) -> None:
        write(session, claim.attempt)
        claim.chain(brooq.Job("follow-up"))
        self.running.set()
        try:
            self.go_on.wait(PATIENCE)  # deaf to any interruption, in a loop as well
            session.execute(text("SELECT 1"))
        finally:
            self.over.set()

    def returns(self) -> None:
        """
        Let the handler return.
        """
        self.go_on.set()
        assert self.over.wait(PATIENCE)

    def leaves_nothing(self, labels: dict[str, int]) -> None:
        """
        Check that it had no effect but the one label, and that the next job is run.
        """
        self.returns()
        (other,) = self.side.add(brooq.Job("innocent"))
        self.side.reaches(other, "done")  # in the only slot, which the first one has left
        assert self.side.notes() == [2]
        assert self.side.labels("t") == labels
        assert self.side.jobs("follow-up") == []


def test_nothing_of_a_canceled_job_commits(make_side: MakeSide) -> None:
    meanwhile = Meanwhile(side := make_side(workers=1))
    with Session(side.engine) as session, session.begin():
        assert brooq.cancel(session, meanwhile.job_id)
    before = row(side.engine, meanwhile.job_id)

    meanwhile.leaves_nothing({"lost": 1})

    assert row(side.engine, meanwhile.job_id) == before
    assert before["state"] == "canceled"


@pytest.mark.parametrize("committed", [False, True])
def test_a_cancel_that_is_not_committed_yet_is_waited_for(make_side: MakeSide, *, committed: bool) -> None:
    meanwhile = Meanwhile(side := make_side(workers=1))
    with Session(side.engine) as session:
        assert brooq.cancel(session, meanwhile.job_id)
        meanwhile.returns()
        # It has tried, and asked why it could not.
        eventually(lambda: side.scalar(IDLE + " AND query LIKE '%pg_locks%'"))
        session.commit() if committed else session.rollback()

    if committed:
        meanwhile.leaves_nothing({"lost": 1})
    else:
        side.reaches(meanwhile.job_id, "done")
        assert (side.notes(), side.labels("t")) == ([1], {"done": 1})
        assert len(side.jobs("follow-up")) == 1


@pytest.mark.parametrize("level", [None, "SERIALIZABLE"])
def test_a_row_that_a_consumer_has_locked_is_waited_for_without_an_error(
    make_side: MakeSide, level: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    meanwhile = Meanwhile(side := make_side(workers=1, level=level))
    with side.engine.begin() as connection:
        connection.execute(text("SELECT FROM job WHERE id = :id FOR UPDATE"), {"id": meanwhile.job_id})
        meanwhile.returns()
        time.sleep(1.5)  # for longer than anybody may wait for a lock
        assert row(side.engine, meanwhile.job_id)["state"] == "processing"
        assert side.scalar(LOCKED_OUT) == 0

    found = side.reaches(meanwhile.job_id, "done")
    assert (found["attempts"], side.notes(), side.labels("t")) == (1, [1], {"done": 1})
    assert side.scalar("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()") == 0
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


LOCKED_OUT = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


@pytest.mark.parametrize("committed", [False, True])
def test_a_consumer_who_holds_the_row_and_wants_what_the_handler_wrote_is_let_through(
    make_side: MakeSide, *, committed: bool
) -> None:
    meanwhile = Meanwhile(side := make_side(workers=1, backoff_base="1h", backoff_max="1h"))
    with ThreadPoolExecutor(1) as pool, Session(side.engine) as session:
        assert brooq.cancel(session, meanwhile.job_id)
        wanting = pool.submit(write, session, 1)
        eventually(lambda: side.scalar(LOCKED_OUT) == 1)
        meanwhile.returns()
        wanting.result(5)
        session.commit() if committed else session.rollback()

    found = side.reaches(meanwhile.job_id, "canceled" if committed else "failed")
    assert side.labels("t") == ({"lost": 1} if committed else {"failed": 1})
    assert (found["last_error"] or "").startswith("" if committed else "Standoff")
    assert side.notes() == ([1] if committed else [])
    assert side.jobs("follow-up") == []
    assert side.scalar("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()") == 0


def test_a_row_that_is_held_beyond_the_lease_is_what_the_failure_names(
    make_side: MakeSide, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"lease": "1s", "reaper_period": "1h", "backoff_base": "1h", "backoff_max": "1h"}
    meanwhile = Meanwhile(side := make_side(workers=1, **settings))
    with Session(side.engine) as session:
        assert brooq.cancel(session, meanwhile.job_id)
        meanwhile.returns()
        eventually(lambda: "until its lease ran out" in caplog.text)
        session.rollback()

    found = side.reaches(meanwhile.job_id, "failed")
    assert "was held by somebody else until its lease ran out" in found["last_error"]
    assert side.notes() == []


@pytest.mark.parametrize("taken", ["locked_by = 'somebody else'", "claimed_at = clock_timestamp()"])
def test_nothing_of_a_job_that_another_claim_has_taken_commits(make_side: MakeSide, taken: str) -> None:
    meanwhile = Meanwhile(side := make_side(workers=1))
    with side.engine.begin() as connection:
        connection.execute(text(f"UPDATE job SET {taken}"))
    before = row(side.engine, meanwhile.job_id)

    meanwhile.leaves_nothing({"lost": 1})

    assert row(side.engine, meanwhile.job_id) == before
    assert before["state"] == "processing"


def test_nothing_of_a_job_whose_lease_was_lost_commits(make_side: MakeSide) -> None:
    meanwhile = Meanwhile(side := make_side(workers=1, lease="300ms"))
    with side.engine.begin() as connection:
        connection.execute(text("UPDATE job SET locked_by = 'somebody else', locked_until = now() + interval '1h'"))
    eventually(side.settled)  # its heartbeat has noticed

    meanwhile.leaves_nothing({"lost": 1})


def test_nothing_of_a_job_that_went_on_to_its_max_execution_timeout_commits(make_side: MakeSide) -> None:
    side = make_side(workers=1, backoff_base="1h", backoff_max="1h")
    meanwhile = Meanwhile(side, attempt_timeout="500ms", max_execution_timeout="1s")
    found = side.reaches(meanwhile.job_id, "failed")
    assert found["last_error"].startswith("MaxExecutionExceeded")

    meanwhile.leaves_nothing({"failed": 1})

    assert row(side.engine, meanwhile.job_id) == found


@only_async
def test_a_statement_that_an_interruption_breaks_off_leaves_nothing_behind(make_side: MakeSide) -> None:
    side = make_side(workers=1, backoff_base="1h", backoff_max="1h")

    @side.queue.handler("t", transactional=True, attempt_timeout="200ms")
    async def handle(claim: brooq.Claim, session: AsyncSession) -> None:
        await session.execute(text("INSERT INTO note VALUES (1)"))
        await session.execute(text("SELECT pg_sleep(30)"))

    side.transactional("innocent", lambda _, session: write(session, 2))
    job_id, other = side.add(brooq.Job("t"), brooq.Job("innocent"))
    side.start()

    assert side.reaches(job_id, "failed")["last_error"].startswith("AttemptTimeout")
    side.reaches(other, "done")
    assert side.notes() == [2]
    assert side.labels("t") == {"failed": 1}
    eventually(lambda: side.sync_engine.pool.checkedout() == 0)  # type: ignore[attr-defined] # a QueuePool
    eventually(lambda: side.scalar(ASLEEP) == 0)


ASLEEP = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'"


@only_plain
def test_a_raising_interruption_rolls_back_what_the_handler_wrote(make_side: MakeSide) -> None:
    side = make_side(workers=1, backoff_base="1h", backoff_max="1h")

    def handle(claim: brooq.Claim, session: Session) -> None:
        write(session, 1)
        while not claim.interrupted:
            time.sleep(0.001)
        time.sleep(0.001)

    side.transactional("t", handle, attempt_timeout="100ms", interrupt="raise")
    (job_id,) = side.add(brooq.Job("t"))
    side.start()

    assert side.reaches(job_id, "failed", "done")["last_error"].startswith("AttemptTimeout")
    assert (side.notes(), side.labels("t")) == ([], {"failed": 1})


# -- when the database goes


def end_backend(connection: Connection) -> None:
    """
    End the server's side of *connection*, and wait until it has noticed.
    """
    pid = connection.connection.driver_connection.info.backend_pid  # type: ignore[union-attr]
    with contextlib.closing(psycopg.connect(_conninfo(connection), autocommit=True)) as other:
        other.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])


def _conninfo(connection: Connection) -> str:
    return connection.engine.url.set(drivername="postgresql").render_as_string(hide_password=False)


class AtFirstCommit:
    """
    Does something to the first connection on *engine* that commits after it has written an outcome.
    """

    def __init__(self, engine: Engine, act: Callable[[Connection], None]) -> None:
        self._writers: set[Connection] = set()
        self._act = act
        self.acted = 0
        event.listen(engine, "before_cursor_execute", self._on_statement)
        event.listen(engine, "commit", self._on_commit)

    def _on_statement(self, connection: Connection, _cursor: Any, statement: str, *_: Any) -> None:
        if "INSERT INTO note" in statement or "follow-up" in statement:
            self._writers.add(connection)

    def _on_commit(self, connection: Connection) -> None:
        if connection in self._writers and not self.acted:
            self.acted += 1
            self._act(connection)


@pytest.mark.parametrize("level", LEVELS)
def test_a_commit_that_fails_is_a_failed_attempt_and_the_effect_is_there_once(
    make_side: MakeSide, level: str | None
) -> None:
    side = make_side(workers=1, level=level)
    commits = AtFirstCommit(side.sync_engine, end_backend)
    side.transactional("t", lambda _, session: write(session, 1))
    (job_id,) = side.add(brooq.Job("t"))

    side.start()

    found = side.reaches(job_id, "done", "dead")
    assert (found["state"], found["attempts"], commits.acted) == ("done", 2, 1)
    assert found["last_error"].startswith("OperationalError")
    assert (side.notes(), side.labels("t")) == ([1], {"failed": 1, "done": 1})


@pytest.mark.parametrize("outage", [False, True])
def test_a_commit_whose_answer_is_lost_is_found_out_about(make_side: MakeSide, *, outage: bool) -> None:
    side = make_side(workers=1)

    def commit_and_lose(connection: Connection) -> None:
        connection.connection.dbapi_connection.commit()  # type: ignore[union-attr]
        if outage:
            with side.engine.begin() as other:
                other.execute(text(END_PUMPS))
        raise OperationalError("COMMIT", {}, ConnectionError("no answer"))

    commits = AtFirstCommit(side.sync_engine, commit_and_lose)
    side.transactional("t", lambda _, session: write(session, 1))
    (job_id,) = side.add(brooq.Job("t"))

    side.start()

    found = side.reaches(job_id, "done", "dead")
    assert (side.notes(), side.labels("t"), commits.acted) == ([1], {"done": 1}, 1)
    assert (found["state"], found["attempts"]) == ("done", 1)


END_PUMPS = (
    "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid() AND query LIKE '%picked%'"
)


def test_what_a_handler_raises_counts_although_its_connection_is_dead(make_side: MakeSide) -> None:
    side = make_side(workers=1)

    def handle(claim: brooq.Claim, session: Session) -> None:
        write(session, 1)
        end_backend(session.connection())
        raise brooq.CancelJob("not any more")

    side.transactional("t", handle)
    side.transactional("innocent", lambda _, session: write(session, 2))
    job_id, other = side.add(brooq.Job("t"), brooq.Job("innocent"))
    side.start()

    assert side.reaches(job_id, "canceled", "failed", "dead")["last_error"] == "CancelJob: not any more"
    side.reaches(other, "done")
    assert side.notes() == [2]


# -- what it enqueues


@pytest.mark.parametrize("level", LEVELS)
def test_jobs_that_a_handler_adds_exist_if_its_job_is_done(make_side: MakeSide, level: str | None) -> None:
    side = make_side(workers=1, level=level, max_attempts=1)

    def handle(claim: brooq.Claim, session: Session) -> None:
        first, second = brooq.Job("plain", claim.payload), brooq.Job("keyed", claim.payload, idempotency_key="k")
        session.add_all([first, second])
        session.add(again := brooq.Job("keyed", "again", idempotency_key="k"))
        session.flush()
        assert (first.created, second.created, again.created) == (True, claim.payload != "second", False)
        if claim.payload == "bad":
            raise ValueError("no")

    side.transactional("t", handle)
    ids = side.add(brooq.Job("t", "bad"), brooq.Job("t", "first"), brooq.Job("t", "second"))
    side.start()

    assert [side.reaches(job_id, "done", "dead")["state"] for job_id in ids] == ["dead", "done", "done"]
    assert [job.payload for job in side.jobs("plain")] == ["first", "second"]
    assert [job.payload for job in side.jobs("keyed")] == ["first"]


def test_what_a_handler_enqueues_is_run_at_once(make_side: MakeSide) -> None:
    side = make_side(workers=1, poll_interval="30s")
    side.transactional("t", lambda _, session: session.add(brooq.Job("next")))
    side.transactional("next", lambda _, session: write(session, 1))
    side.add(brooq.Job("t"))

    side.start()

    eventually(lambda: side.notes() == [1])


@only_plain
def test_the_consumers_own_sessions_are_lent(make_side: MakeSide) -> None:
    factory = sessionmaker(autobegin=False, info={"whose": "the consumer's"})
    side = make_side(queue_options={"session_factory": factory})
    factory.configure(bind=side.own)
    seen: list[str] = []

    def handle(_: brooq.Claim, session: Session) -> None:
        seen.append(session.info["whose"])
        write(session, 1)

    side.transactional("t", handle)
    (job_id,) = side.add(brooq.Job("t"))
    side.start()

    side.reaches(job_id, "done")
    assert (seen, side.notes()) == (["the consumer's"], [1])
